"""An etcd newer than the system's package, built with Go once and kept below build/."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

VERSION = "3.7.3"
REPOSITORY = Path(__file__).resolve().parents[3]
KEPT = REPOSITORY / "build" / "etcd" / f"etcd-{VERSION}"
BUILD_S = 100
"""It takes about half a minute on two cores, and longer where the modules have to come first."""

MODULE = f"module etcd\n\nrequire go.etcd.io/etcd/server/v3 v{VERSION}\n"
MAIN = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def newer_etcd() -> Path:
    """The program; skips the test by name where it is neither there nor can be built."""
    if KEPT.exists():
        return KEPT
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip(f"needs etcd {VERSION}, and Go to build it")
    with tempfile.TemporaryDirectory(prefix="bgplb-etcd-build-") as folder:
        Path(folder, "go.mod").write_text(MODULE)
        Path(folder, "main.go").write_text(MAIN)
        command = [go, "build", "-mod=mod", "-o", "etcd", "."]
        try:
            built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"needs etcd {VERSION}, which Go did not build within {BUILD_S} s")
        if built.returncode != 0:
            pytest.skip(f"needs etcd {VERSION}, which Go could not build: {built.stderr.strip()[-200:]}")
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder, "etcd"), KEPT)
    return KEPT
