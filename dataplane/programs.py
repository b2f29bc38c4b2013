"""Starting the few programs that this package may start: argument lists, no shell, absolute paths, a deadline."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dataplane.aside import aside
from dataplane.errors import KernelRefused, KernelTimeout, ProgramMissing

Program = Literal["nft", "ip", "wireguard-go", "conntrack"]

PACKAGES: dict[Program, str] = {
    "nft": "nftables",
    "ip": "iproute2",
    "wireguard-go": "wireguard-go",
    "conntrack": "conntrack",
}
"""Everything that may be started, and the Debian package that brings it."""

FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
"""Where programs are looked for: PATH is not asked, since a daemon with our rights must not follow it."""

_UMASK = 0o022
"""Not the daemons' own: what `ip netns add` makes below /run is not only ours, and holds no secret."""

_ENVIRONMENT = {"PATH": ":".join(FOLDERS), "LC_ALL": "C"}


def path_of(program: Program) -> Path:
    """The absolute path of an allowed program. Raises ProgramMissing with the package to install."""
    if program not in PACKAGES:
        raise ValueError(f"{program} is not among the programs that may be started: {', '.join(PACKAGES)}")
    for folder in FOLDERS:
        path = Path(folder) / program
        if os.access(path, os.X_OK):
            return path
    raise ProgramMissing(program, PACKAGES[program], FOLDERS)


def _command(program: Program, arguments: Sequence[str], namespace: str | None) -> list[str]:
    entering = [] if namespace is None else [str(path_of("ip")), "netns", "exec", namespace]
    return [*entering, str(path_of(program)), *arguments]


async def run(
    program: Program, *arguments: str, stdin: str = "", namespace: str | None = None, deadline_s: float = 5.0
) -> str:
    """Run to the end and return its standard output.

    Raises KernelRefused with the program's own words when it exits with an error, KernelTimeout (and kills it) when it
    does not end in time, ProgramMissing when it is not installed.
    """
    what = " ".join([program, *arguments])
    return await aside(_run(_command(program, arguments, namespace), what, stdin.encode(), deadline_s))


async def _run(command: list[str], what: str, stdin: bytes, deadline_s: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_ENVIRONMENT,
        umask=_UMASK,
    )
    try:
        async with asyncio.timeout(deadline_s):
            output, complaint = await process.communicate(stdin)
    except TimeoutError as error:
        raise KernelTimeout(what, deadline_s) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise KernelRefused(0, what, complaint.decode(errors="replace").strip() or f"exit {process.returncode}")
    return output.decode()


async def start_detached(program: Program, *arguments: str, namespace: str | None = None, deadline_s: float) -> None:
    """Start a program that puts itself in the background and outlives us; returns when it says it is ready.

    It gets no descriptor of ours: a daemon that keeps its parent's pipes open hangs whoever reads them.
    """
    what = " ".join([program, *arguments])
    await aside(_start_detached(_command(program, arguments, namespace), what, deadline_s))


async def _start_detached(command: list[str], what: str, deadline_s: float) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        close_fds=True,
        cwd="/",
        env=_ENVIRONMENT,
        umask=_UMASK,
    )
    try:
        async with asyncio.timeout(deadline_s):
            code = await process.wait()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise KernelTimeout(what, deadline_s) from error
    if code != 0:
        raise KernelRefused(0, what, f"exit {code}")
