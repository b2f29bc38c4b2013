"""Each rule finds the offence it is there for: a planted one must not pass."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.style import banned, programs, shape
from tests.style.sources import REPOSITORY, Finding, Source

CORE, LEADER, ADAPTER, WIRING = (
    "fsm/pool.py",
    "orchestrator/leader/loop.py",
    "dataplane/nft.py",
    "orchestrator/wiring.py",
)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (LEADER, "import time\n"),
        (LEADER, "from time import monotonic\n"),
        (LEADER, "import asyncio\nasync def f():\n    await asyncio.sleep(1)\n"),
        (LEADER, "from asyncio import sleep\n"),
        (LEADER, "import asyncio as a\nasync def f():\n    await a.sleep(1)\n"),
        (LEADER, "import asyncio\nx = asyncio.get_running_loop().time()\n"),
        (LEADER, "import asyncio\nloop = asyncio.get_running_loop()\nx = loop.time()\n"),
        (LEADER, "def f(loop):\n    loop.call_later(1, f)\n"),
        (ADAPTER, "def f(loop):\n    loop.add_reader(3, f)\n"),
        (LEADER, "import datetime\nx = datetime.datetime.now()\n"),
        (LEADER, "from datetime import datetime\nx = datetime.now()\n"),
        (LEADER, "import random\n"),
        (LEADER, "import uuid\nx = uuid.uuid4()\n"),
        (LEADER, "import socket\n"),
        (LEADER, "import asyncio\nx = asyncio.open_unix_connection('/s')\n"),
        (LEADER, "import subprocess\n"),
        (LEADER, "import asyncio\nx = asyncio.create_subprocess_exec('ip')\n"),
        (LEADER, "import grpc.aio\n"),
        (LEADER, "from pyroute2 import AsyncIPRoute\n"),
        ("dataplane/diff.py", "import socket\n"),
        ("birdctl/render.py", "import socket\n"),
        (ADAPTER, "import time\n"),
        (ADAPTER, "import os\nos.system('ip link')\n"),
        (ADAPTER, "import subprocess\nsubprocess.run('ip link', shell=True)\n"),
        (WIRING, "import subprocess\nsubprocess.run('ip link', shell=yes)\n"),
        ("deploy/lab/world.py", "import asyncio\nx = asyncio.create_subprocess_shell('ip')\n"),
    ],
)
def test_banned_call_is_found(path: str, text: str) -> None:
    assert banned.banned_calls(Source(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            LEADER,
            "import asyncio\nasync def f(clock):\n    async with asyncio.timeout(1):\n        await clock.sleep(1)\n",
        ),
        (LEADER, "import datetime\nx = datetime.timedelta(seconds=1)\n"),
        (LEADER, "def time(): ...\nx = time()\n"),
        (LEADER, "import uuid\nx = uuid.UUID('0' * 32)\n"),
        (ADAPTER, "import socket, subprocess\nsubprocess.run(['ip'], shell=False)\n"),
        (WIRING, "import time, random, asyncio\nx = asyncio.sleep(time.monotonic())\n"),
    ],
)
def test_allowed_call_is_not_found(path: str, text: str) -> None:
    assert banned.banned_calls(Source(path, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['iptables', '-L'])\n",
        "import asyncio\nx = asyncio.create_subprocess_exec('bird', '-f')\n",
        "from asyncio import create_subprocess_exec as go\nx = go('bash')\n",
        "import subprocess\ndef f(argv):\n    subprocess.Popen(argv)\n",
        "import subprocess\nPROGRAMS = ('ip',)\ndef f(argv):\n    subprocess.Popen(argv)\n",
        "import subprocess\nPROGRAMS = ('ip', 'sh')\ndef f(a):\n  assert a[0] in PROGRAMS\n  subprocess.Popen(a)\n",
        "import subprocess\nPACKAGES = {'sh': 'dash'}\ndef f(a):\n  assert a[0] in PACKAGES\n  subprocess.Popen(a)\n",
        "import subprocess\nTOOL = 'sysctl'\nsubprocess.run([TOOL, '-w'])\n",
    ],
)
def test_unlisted_program_is_found(text: str) -> None:
    assert programs.started_programs(Source(ADAPTER, text))


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['nft', '-j'])\n",
        "import asyncio\nNFT = 'nft'\nx = asyncio.create_subprocess_exec(NFT, '-j')\n",
        "import subprocess\nPROGRAMS = ('ip', 'nft')\ndef f(a):\n  assert a[0] in PROGRAMS\n  subprocess.Popen(a)\n",
        "import subprocess\nPACKAGES = {'nft': 'x'}\ndef f(a):\n  assert a[0] not in PACKAGES\n  subprocess.Popen(a)\n",
    ],
)
def test_listed_program_is_not_found(text: str) -> None:
    assert programs.started_programs(Source(ADAPTER, text)) == []


def test_long_function_is_found() -> None:
    body = "    pass\n" * (shape.FUNCTION_LINES_MAX - 1)
    assert shape.long_functions(Source(CORE, "def f():\n" + body)) == []
    assert shape.long_functions(Source(CORE, "async def f():\n    pass\n" + body))
    assert shape.long_functions(Source(CORE, "class C:\n  @property\n  def f(self):\n" + body))


def test_long_file_is_found() -> None:
    assert shape.long_file(Source(CORE, "\n" * shape.FILE_LINES_MAX)) == []
    assert shape.long_file(Source(CORE, "\n" * (shape.FILE_LINES_MAX + 1)))


@pytest.mark.parametrize("path", ["orchestrator/utils.py", "orchestrator/helpers/x.py", "dataplane/manager.py"])
def test_vague_name_is_found(path: str) -> None:
    assert shape.vague_name(Source(path, ""))


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\n",
        "from os import path\n",
        "import msgspec\n",
        "x = open('f')\n",
        "async def f(c):\n    await c.now()\n",
    ],
)
def test_core_reaching_out_is_found(text: str) -> None:
    assert shape.core_reaches_out(Source(CORE, text))


@pytest.mark.parametrize(
    "text",
    [
        "see /wo" + "rk/main/x",
        "https://py" + "pi.org/simple",
        "cd ../sha" + "red",
        "http://deb.deb" + "ian.org/",
        "by Clau" + "de",
        "/root/.py" + "env/bin",
    ],
)
def test_foreign_word_is_found(text: str) -> None:
    assert shape.forbidden_words("README.md", text) == [
        Finding("README.md", 1, shape.forbidden_words("", text)[0].text)
    ]


@pytest.mark.parametrize(
    "text", ["a network/worker pair", "a framework", "a worked example", "/workers/1", "PyPI lists it"]
)
def test_harmless_word_is_not_found(text: str) -> None:
    assert shape.forbidden_words("README.md", text) == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("fsm", "dataplane"),
        ("fsm", "asyncio"),
        ("fsm", "socket"),
        ("dataplane", "birdctl"),
        ("birdctl", "dataplane"),
        ("birdctl", "orchestrator"),
        ("orchestrator.config", "orchestrator.store"),
        ("orchestrator.store", "orchestrator.leader"),
        ("orchestrator.leader", "orchestrator.agents"),
        ("orchestrator.leader", "orchestrator.wiring"),
        ("orchestrator", "bgplb_lab"),
    ],
)
def test_broken_import_contract_is_found(tmp_path: Path, importer: str, imported: str) -> None:
    """A small copy of the package tree with one wrong import fails its contract."""
    parts = ("config", "store", "leader", "agents", "wiring", "cli")
    for name in (
        "fsm",
        "birdctl",
        "dataplane",
        "orchestrator",
        "bgplb_lab",
        *(f"orchestrator.{part}" for part in parts),
    ):
        folder = tmp_path / name.replace(".", "/")
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    (tmp_path / importer.replace(".", "/") / "wrong.py").write_text(f"import {imported}\n")
    shutil.copy(REPOSITORY / ".importlinter", tmp_path)
    # -S: without the editable install, which would bring in the real packages instead.
    call = (
        "import sys; folders = sys.argv[1:3]; del sys.argv[1:]; sys.path[:0] = folders;"
        " from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    site = str(Path(pytest.__file__).parents[1])
    command = [sys.executable, "-S", "-c", call, str(tmp_path), site]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert "1 broken" in answer.stdout, answer.stdout + answer.stderr
