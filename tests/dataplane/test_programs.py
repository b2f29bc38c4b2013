"""Programs: only those on the list, only from trusted folders, always to an end."""

import os
from pathlib import Path

import pytest

from dataplane import programs
from dataplane.errors import KernelRefused, KernelTimeout, ProgramMissing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only trusted folder, empty."""
    monkeypatch.setattr(programs, "FOLDERS", (str(tmp_path),))
    return tmp_path


def script(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_what_is_not_on_the_list_is_not_started() -> None:
    with pytest.raises(ValueError, match="not among the programs"):
        programs.path_of("sh")  # type: ignore[arg-type]


def test_a_missing_program_names_its_package(folder: Path) -> None:
    with pytest.raises(ProgramMissing, match="install the package nftables"):
        programs.path_of("nft")


def test_path_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    script(other, "nft", "exit 0")
    monkeypatch.setenv("PATH", str(other))
    with pytest.raises(ProgramMissing):
        programs.path_of("nft")


async def test_its_own_words_are_in_the_error(folder: Path) -> None:
    script(folder, "nft", "echo no such chain >&2; exit 3")
    with pytest.raises(KernelRefused, match=r"nft list: .*no such chain"):
        await programs.run("nft", "list")


async def test_input_and_output_pass(folder: Path) -> None:
    script(folder, "nft", 'while read line; do echo "got $line"; done')
    assert await programs.run("nft", stdin="one\ntwo\n") == "got one\ngot two\n"


async def test_what_does_not_end_is_killed_and_raised(folder: Path) -> None:
    script(folder, "nft", f"echo $$ > {folder}/pid; while :; do read x < {folder}/pid; done")
    with pytest.raises(KernelTimeout, match="read back"):
        await programs.run("nft", deadline_s=0.3)
    assert not os.path.exists(f"/proc/{(folder / 'pid').read_text().strip()}")  # noqa: ASYNC240


async def test_a_detached_program_gets_nothing_of_ours(folder: Path) -> None:
    script(folder, "wireguard-go", f"ls -l /proc/$$/fd > {folder}/fds; exit 0")
    await programs.start_detached("wireguard-go", "wg0", deadline_s=5)
    listing = (folder / "fds").read_text()
    assert listing.count("/dev/null") >= 2 and "socket:" not in listing and "pipe:" not in listing
    script(folder, "wireguard-go", "exit 4")
    with pytest.raises(KernelRefused, match="exit 4"):
        await programs.start_detached("wireguard-go", "wg0", deadline_s=5)
