"""`bgplb etcd`: users and roles in etcd, so that each daemon may write only what is its own."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.environment import CliError, ConfigOption, Environment, Exit, cli_config, environment

if TYPE_CHECKING:
    from orchestrator.config.sections import Etcd
    from orchestrator.store.auth import Found, Principal

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Users and roles in etcd, so that each daemon may write only what is its own.",
)


@app.callback()
def etcd() -> None:
    """Keep `bootstrap-auth` a subcommand, though it is the only one."""


@dataclass(frozen=True, slots=True)
class Names:
    """Who shall have a user."""

    orchestrators: Sequence[str]
    edges: Sequence[str]
    nodes: Sequence[str]
    operators: Sequence[str]


def _names(option: str, who: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, metavar="NAME", help=f"{who}; may be given several times.")
    return found


@app.command("bootstrap-auth")
def bootstrap_auth(
    ctx: typer.Context,
    orchestrators: Annotated[list[str] | None, _names("--orchestrator", "An orchestrator, by its `name`")] = None,
    edges: Annotated[list[str] | None, _names("--edge", "An edge agent, by its `name`")] = None,
    nodes: Annotated[list[str] | None, _names("--node", "A node agent, by its `name`")] = None,
    operators: Annotated[list[str] | None, _names("--operator", "A person who uses the other commands")] = None,
    passwords: Annotated[
        Path | None,
        typer.Option(
            "--passwords",
            metavar="DIR",
            help="Folder with a file for each user who logs in by password, named after the user, mode 0600, the "
            "password in its first line. Others show a certificate with the user's name as common name.",
        ),
    ] = None,
    enable: Annotated[
        bool, typer.Option("--enable", help="At the end, turn access control on: from then on everybody logs in.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Make users and roles in etcd and say what was done. A second run does only what is missing.

    Users are bgplb-orchestrator-NAME, bgplb-edge-NAME, bgplb-node-NAME, bgplb-operator-NAME, and etcd's own root. An
    agent may write its own registration, heartbeat and reports, and read its own orders; an operator may read all and
    ask; an orchestrator writes the rest. Nobody is removed: who was there before and is not named keeps his user.

    Once access control is on, the configuration's section `etcd` has to log in as root, by password or certificate.

    \b
    Example:
      bgplb etcd bootstrap-auth --orchestrator orch-1 --edge edge-1 --node gw-a --node gw-b --passwords DIR --enable
    """
    env = environment(ctx)
    names = Names(orchestrators or (), edges or (), nodes or (), operators or ())
    section = cli_config(env, config).etcd
    principals = _principals(section.prefix, names)
    _report(_bootstrap(env, section, principals, _passwords(passwords), enable), section)


def _principals(prefix: str, names: Names) -> "list[Principal]":
    """Who shall have a user. Raises CliError for a name that no daemon can have."""
    from orchestrator.config.sections import DNS_LABEL, NAME_RULE
    from orchestrator.store import auth
    from orchestrator.store.keys import Keys

    keys = Keys(prefix)
    makers: list[tuple[str, Sequence[str], Callable[[Keys, str], Principal]]] = [
        ("--orchestrator", names.orchestrators, auth.orchestrator),
        ("--edge", names.edges, lambda keys, name: auth.agent(keys, "edge", name)),
        ("--node", names.nodes, lambda keys, name: auth.agent(keys, "node", name)),
        ("--operator", names.operators, auth.operator),
    ]
    wrong = [f"{option} {name!r}" for option, given, _ in makers for name in given if not re.match(DNS_LABEL, name)]
    if wrong:
        raise CliError(Exit.BAD_INPUT, f"{', '.join(wrong)}: not a name; allowed is {NAME_RULE}")
    return [make(keys, name) for _, given, make in makers for name in dict.fromkeys(given)]


def _passwords(folder: Path | None) -> dict[str, str]:
    """Password by user. Raises CliError when a file may be read by others, is empty, or names no user of ours."""
    from orchestrator.store.auth import OWN, ROOT
    from orchestrator.store.secret_files import read_password

    if folder is None:
        return {}
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        strange = [path.name for path in files if path.name != ROOT and not path.name.startswith(OWN)]
        if strange:
            text = f"{folder}: {', '.join(strange)}: not the name of a user of ours; files here are named after users"
            raise CliError(Exit.BAD_INPUT, text)
        return {path.name: read_password(path) for path in files}
    except OSError as error:
        raise CliError(Exit.BAD_INPUT, f"{error.filename}: cannot be used: {error.strerror}") from error


def _bootstrap(
    env: Environment, section: "Etcd", principals: "Sequence[Principal]", passwords: dict[str, str], enable: bool
) -> list[str]:
    """Do it; what was done, a line each. Raises CliError."""
    from orchestrator.store import auth
    from orchestrator.store.etcd_auth import EtcdAuth
    from orchestrator.store.opening import read_tls
    from orchestrator.store.port import Refused, StoreError
    from orchestrator.store.secret_files import read_password

    async def run() -> list[str]:
        root = read_password(section.password_file) if section.password_file is not None else None
        access = await EtcdAuth.connect(section.endpoints, env.clock, read_tls(section), section.username, root)
        try:
            found = await access.read()
            _refuse_lock_out(section, principals, found, passwords)
            new = {user: word for user, word in passwords.items() if not await access.accepts(user, word)}
            done = []
            for step in auth.steps(found, principals, new, enable=enable):
                await access.do(step, passwords)
                done.append(str(step))
            return done
        finally:
            await access.close()

    try:
        return asyncio.run(run())
    except Refused as error:
        raise CliError(Exit.REFUSED, str(error)) from error
    except StoreError as error:
        raise CliError(Exit.UNREACHABLE, f"{error} (etcd: {', '.join(section.endpoints)})") from error
    except OSError as error:
        text = f"{error.filename}: cannot be read: {error.strerror}; it is named in the section etcd"
        raise CliError(Exit.BAD_INPUT, text) from error


def _refuse_lock_out(
    section: "Etcd", principals: "Sequence[Principal]", found: "Found", passwords: dict[str, str]
) -> None:
    """Without TLS nobody can show a certificate: a user who is made without a password could never log in."""
    from orchestrator.store.auth import ROOT

    if section.endpoints[0].startswith("https:"):
        return
    users = [*(principal.user for principal in principals), ROOT]
    without = [user for user in users if user not in found.users and user not in passwords]
    if without:
        text = (
            f"no password for {', '.join(without)}, and over http nobody can show a certificate: "
            "give --passwords a folder with a file for each, or use https endpoints"
        )
        raise CliError(Exit.BAD_INPUT, text)


def _report(done: list[str], section: "Etcd") -> None:
    for line in done:
        print(line)
    print(f"{len(done)} steps done" if done else "all is as it should be already")
    if section.endpoints[0].startswith("http:"):
        print("note: the endpoints are http: passwords and everything else cross the network in clear")
