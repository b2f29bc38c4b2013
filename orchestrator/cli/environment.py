"""What every command needs from outside, in one value that a test replaces: store, clock, who asks."""

import asyncio
import enum
import os
import pwd
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fsm.ports import Clock
from orchestrator.clock import BootClock, wall_ms

if TYPE_CHECKING:
    from orchestrator.config.cli import CliConfig
    from orchestrator.config.sections import Etcd
    from orchestrator.store.port import Store

T = TypeVar("T")
ETC = Path("/etc/bgplb")
DEFAULT_FILES = ("cli.yaml", "orchestrator.yaml", "edge-agent.yaml", "node-agent.yaml")
"""Where the store's address is looked for, in this order, unless it is given."""


class Exit(enum.IntEnum):
    """Exit codes; 2, for wrong usage, is the command line parser's own."""

    DONE = 0
    CHECK_FAILED = 1
    BAD_INPUT = 3
    NOT_FOUND = 4
    UNREACHABLE = 5
    REFUSED = 6
    TIMED_OUT = 7
    PREREQUISITE = 8


class CliError(Exception):
    """A command that ends without having done what it was asked: one sentence, and what to do next."""

    def __init__(self, code: Exit, text: str) -> None:
        self.code = code
        super().__init__(text)


def open_etcd(etcd: "Etcd", clock: Clock) -> "Store":
    """The real store. Raises CliError when a file that `etcd` names cannot be read. Call it in a running loop."""
    from orchestrator.store.opening import open_store

    try:
        return open_store(etcd, clock)
    except OSError as error:
        text = f"{error.filename}: cannot be read: {error.strerror}; it is named in the section etcd"
        raise CliError(Exit.BAD_INPUT, text) from error


def _user() -> str:
    if os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


@dataclass(frozen=True)
class Environment:
    """Everything outside of a command. `wall_ms` is for records that people read, never for a decision."""

    open_store: Callable[["Etcd", Clock], "Store"] = open_etcd
    clock: Clock = field(default_factory=BootClock)
    wall_ms: Callable[[], int] = wall_ms
    user: Callable[[], str] = _user
    is_root: Callable[[], bool] = lambda: os.geteuid() == 0
    etc: Path = ETC


def environment(ctx: typer.Context) -> Environment:
    """The environment of this run; a test hands its own to the runner as `obj`."""
    found = ctx.find_object(Environment)
    return found if found is not None else Environment()


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="BGPLB_CONFIG",
        metavar="FILE",
        help="Where the store is: cli.yaml or any daemon's file. Default: the first of "
        + ", ".join(DEFAULT_FILES)
        + " in /etc/bgplb.",
    ),
]
SocketOption = Annotated[
    Path | None,
    typer.Option(
        "--socket", metavar="PATH", help="Ask this daemon's admin socket, such as /run/bgplb/NAME.sock, not the store."
    ),
]


def cli_config(env: Environment, path: Path | None) -> "CliConfig":
    """The configuration of a command. Raises CliError with every problem of the file."""
    from orchestrator.config.cli import CliConfig
    from orchestrator.config.edge_agent import EdgeAgentConfig
    from orchestrator.config.files import load
    from orchestrator.config.node_agent import NodeAgentConfig
    from orchestrator.config.orchestrator import OrchestratorConfig
    from orchestrator.config.problems import ConfigError

    if path is None:
        path = next((env.etc / name for name in DEFAULT_FILES if (env.etc / name).is_file()), None)
    if path is None:
        text = (
            f"no configuration: none of {', '.join(DEFAULT_FILES)} is in {env.etc}; "
            f"write {env.etc}/cli.yaml ('bgplb config example cli' shows one), or give --config"
        )
        raise CliError(Exit.BAD_INPUT, text)
    try:
        return load(path, CliConfig)
    except ConfigError as error:
        for model in (OrchestratorConfig, EdgeAgentConfig, NodeAgentConfig):
            try:
                return CliConfig(etcd=load(path, model).etcd)
            except ConfigError:
                continue
        raise CliError(Exit.BAD_INPUT, str(error)) from error


def with_store(env: Environment, path: Path | None, action: Callable[["Store", "CliConfig"], Awaitable[T]]) -> T:
    """Run `action` with the store open. What the store raises becomes a CliError."""
    from orchestrator.store.port import StoreError
    from orchestrator.store.records import RecordError

    config = cli_config(env, path)

    async def run() -> T:
        store = env.open_store(config.etcd, env.clock)
        try:
            return await action(store, config)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except StoreError as error:
        members = ", ".join(config.etcd.endpoints)
        raise CliError(Exit.UNREACHABLE, f"{error} (etcd: {members})") from error
    except RecordError as error:
        raise CliError(Exit.CHECK_FAILED, f"the store holds what this version cannot read: {error}") from error


def ask_socket(path: Path, request: dict[str, object]) -> dict[str, Any]:
    """The answer of a daemon's admin socket. Raises CliError."""
    from orchestrator.admin import AdminError, CommandRefused, ask

    try:
        answer = asyncio.run(ask(path, request))
    except AdminError as error:
        raise CliError(Exit.UNREACHABLE, str(error)) from error
    except CommandRefused as error:
        raise CliError(Exit.REFUSED, f"{path}: {error}") from error
    if not isinstance(answer, dict):
        raise CliError(Exit.UNREACHABLE, f"{path}: an answer that is no object; is it a socket of bgplb?")
    return answer
