"""Make this machine ready to run bgplb from its repository: system packages and `.venv`.

    python3 deploy/setup/setup.py [--check] [--vm]

It lists what is missing before it installs any of it, does nothing when nothing is missing,
and never leaves a service started or enabled that was not so before. Standard library only,
and kept readable for old interpreters, so that a wrong one gets a sentence instead of a traceback.

Exit codes: 0 everything is there; 1 (`--check` only) something is missing; 8 a prerequisite is missing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from interpreter import Interpreter, find_interpreter
from packages import install_packages, missing_packages
from steps import SetupError, run_logged, say
from units import disable_newly_enabled

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "bgplb-setup.json"
LOG = ROOT / "build" / "setup.log"
FINGERPRINTED = ("requirements.lock", "pyproject.toml", "setup.py")
EXIT_MISSING, EXIT_PREREQUISITE = 1, 8


def fingerprint(python: Interpreter) -> dict[str, str]:
    """What the environment depends on; a difference to the stamp in `.venv` means it must be renewed."""
    digest = hashlib.sha256()
    for name in FINGERPRINTED:
        digest.update((ROOT / name).read_bytes())
    # Scripts in .venv carry its absolute path, so a moved clone needs new ones.
    return {"files": digest.hexdigest(), "python": python.version, "folder": str(ROOT)}


def environment_state(python: Interpreter | None) -> str:
    """`ready`, `stale` (can be brought up to date in place) or `absent` (must be made anew)."""
    if python is None or python.path != str(VENV / "bin" / "python"):
        return "absent"
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return "stale"
    return "ready" if stamp == fingerprint(python) else "stale"


def locked_count() -> int:
    """How many Python packages the lock file names."""
    return sum("==" in line for line in (ROOT / "requirements.lock").read_text().splitlines())


def build_environment(python: Interpreter, state: str) -> None:
    """Bring `.venv` to the lock file and install this repository into it, editable."""
    if state == "absent":
        say(f"making .venv with Python {python.version}")
        run_logged([python.path, "-m", "venv", "--clear", str(VENV)], LOG, "cannot make .venv")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    say(f"installing {locked_count()} Python packages into .venv (half a minute on a quick line)")
    run_logged(
        [*pip, "install", "--require-hashes", "-r", "requirements.lock"], LOG, "cannot install the Python packages"
    )
    say("installing bgplb itself into .venv (editable)")
    # The build back end is one of the locked packages: no second, unpinned download for it.
    run_logged(
        [*pip, "install", "--no-deps", "--no-build-isolation", "-e", "."], LOG, "cannot install bgplb into .venv"
    )
    STAMP.write_text(json.dumps(fingerprint(python)))


def announce(missing: list[str], state: str, python: Interpreter | None) -> None:
    """Say what is going to be done, before any of it is."""
    say("this will be installed:")
    if missing:
        say("  system packages, with apt-get, no service started or enabled: " + " ".join(missing))
    if state != "ready":
        version = f"Python {python.version}" if python else "the Python that comes with python3-venv"
        say(f"  .venv in this folder: {version}, {locked_count()} packages of requirements.lock with their hashes")
    say(f"  nothing else; the full output goes to {LOG.relative_to(ROOT)}")


def set_up(check_only: bool, for_vm: bool) -> int:
    """List, then install, what is missing; `for_vm`: what the virtual machine of the tests needs, too.

    Raises:
        SetupError: a prerequisite is missing; its text is the one sentence to show.
    """
    python = find_interpreter(VENV)
    missing = missing_packages(python is None, for_vm)
    state = environment_state(python)
    if not missing and state == "ready":
        say(f"everything is there: system packages, and {locked_count()} Python packages in .venv")
        return 0
    announce(missing, state, python)
    if check_only:
        return EXIT_MISSING
    if missing:
        if os.geteuid() != 0:
            raise SetupError(
                "not root, and system packages are missing: run it as root, or install them: " + " ".join(missing)
            )
        with disable_newly_enabled(ROOT / "build" / "setup-enabled-before.json"):
            install_packages(missing, LOG)
        python = find_interpreter(VENV)
        state = environment_state(python)
    if python is None:
        raise SetupError(
            "no Python 3.11 or newer that can make a virtual environment: install python3 (3.11+) and python3-venv"
        )
    if state != "ready":
        build_environment(python, state)
    say("done")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Install what bgplb needs: system packages and .venv.")
    parser.add_argument("--check", action="store_true", help="only list what is missing; exit 1 if something is")
    parser.add_argument(
        "--vm", action="store_true", help="also what the tests on a stock kernel need: qemu and a kernel"
    )
    arguments = parser.parse_args()
    os.chdir(str(ROOT))
    LOG.parent.mkdir(exist_ok=True)
    try:
        with LOG.with_suffix(".lock").open("w") as lock:
            # Two at the same time would install into each other's half-made .venv.
            fcntl.flock(lock, fcntl.LOCK_EX)
            return set_up(arguments.check, arguments.vm)
    except SetupError as problem:
        say(f"failed: {problem}", stream=sys.stderr)
        return EXIT_PREREQUISITE
    except KeyboardInterrupt:
        say("interrupted; run it again to go on", stream=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
