"""`bgplb store`: which store this is, and making one usable that was emptied, restored or replaced."""

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.environment import CliError, ConfigOption, Environment, Exit, environment, with_store

if TYPE_CHECKING:
    from orchestrator.config.cli import CliConfig
    from orchestrator.store.acceptance import Standing
    from orchestrator.store.generation import Meta
    from orchestrator.store.keys import Keys
    from orchestrator.store.port import Store

WAIT_S = 10.0
POLL_S = 0.25
OBEYED_WITHIN_S = 10.0

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make a store usable: one that nobody has used, or one that was emptied, restored or replaced.",
)


@app.command()
def init(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Give a store that nobody has used its generation. The first orchestrator that leads does the same.

    Needs the credentials of an orchestrator where etcd has access control.

    \b
    Example:
      bgplb store init --config /etc/bgplb/orchestrator.yaml
    """
    env = environment(ctx)

    async def run(store: "Store", cli: "CliConfig") -> str:
        from orchestrator.store.acceptance import establish, look
        from orchestrator.store.keys import Keys

        keys = Keys(cli.etcd.prefix)
        standing = await look(store, keys)
        if standing.meta is not None:
            raise CliError(Exit.REFUSED, f"the store has a generation already: {standing.meta.generation}")
        refusing = ", ".join(f"{agent.role} {agent.name}" for agent in standing.refusing())
        if refusing:
            text = f"these obeyed another store and refuse this one: {refusing}; 'bgplb store accept' is for that"
            raise CliError(Exit.REFUSED, text)
        meta = _new_meta(env, standing)
        if not await establish(store, keys, standing, meta, standing.silent(())):
            raise CliError(Exit.REFUSED, "somebody else gave it a generation at this very moment")
        return meta.generation

    print(f"the store has generation {with_store(env, config, run)}")


@app.command()
def accept(
    ctx: typer.Context,
    edges: Annotated[
        list[str] | None,
        typer.Option("--edge", metavar="NAME", help="An edge that must have told its highest number; several times."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without", metavar="NAME", help="An edge that is gone for good, or has lost its disk; several times."
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make the daemons obey a store that they refuse: it was emptied, restored from a backup, or is another cluster.

    Each edge that refuses tells the highest number that it has accepted; the counter is raised above all of them, so
    that no number is given twice, and the store gets a new generation that follows the old ones. Until then traffic
    stays where it is. Waits up to 10 s for edges that the accepted intent names; with a store that was emptied, name
    them with --edge.

    Needs the credentials of an orchestrator where etcd has access control.

    \b
    Example:
      bgplb store accept --edge edge-1 --config /etc/bgplb/orchestrator.yaml
    """
    env = environment(ctx)

    async def run(store: "Store", cli: "CliConfig") -> None:
        from orchestrator.store.acceptance import establish
        from orchestrator.store.keys import Keys

        keys = Keys(cli.etcd.prefix)
        standing = await _all_there(env, store, keys, edges or [], without or [])
        meta = _new_meta(env, standing)
        if not await establish(store, keys, standing, meta, without or []):
            raise CliError(Exit.REFUSED, "the store changed at this very moment: run the command again")
        for agent in sorted(standing.agents, key=lambda a: (a.role, a.name)):
            if agent.role == "edge":
                print(f"edge {agent.name}: highest number {agent.highest_epoch}")
        print(f"the next number is {standing.highest_epoch() + 1}; the store has generation {meta.generation}")
        await _obeyed(env, store, keys)

    with_store(env, config, run)


def _new_meta(env: Environment, standing: "Standing") -> "Meta":
    created = datetime.fromtimestamp(env.wall_ms() // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return standing.next_meta(str(uuid.uuid4()), created)


async def _all_there(
    env: Environment, store: "Store", keys: "Keys", edges: list[str], without: list[str]
) -> "Standing":
    """Wait until every edge has told its number. Raises CliError: nobody refuses, or an edge is silent."""
    from orchestrator.store.acceptance import look

    deadline = env.clock.now() + WAIT_S
    while True:
        standing = await look(store, keys)
        silent = [name for name in standing.silent(edges) if name not in without]
        told = standing.edges - set(silent) or without
        if standing.refusing() and not silent and told:
            return standing
        if env.clock.now() >= deadline:
            break
        await env.clock.sleep(POLL_S)
    if not standing.refusing():
        text = "nobody refuses this store, so there is nothing to accept; do the daemons run ('bgplb status')?"
        raise CliError(Exit.REFUSED, text)
    if silent:
        text = f"the highest number of {', '.join(silent)} is not known: start its agent, or give --without NAME"
        raise CliError(Exit.REFUSED, text)
    text = "no edge has told its highest number: start the edges' agents; name those that are gone with --without NAME"
    raise CliError(Exit.REFUSED, text)


async def _obeyed(env: Environment, store: "Store", keys: "Keys") -> None:
    """Wait until nobody refuses any more. Raises CliError naming those who still do."""
    from orchestrator.store.acceptance import look

    deadline = env.clock.now() + OBEYED_WITHIN_S
    while refusing := (await look(store, keys)).refusing():
        if env.clock.now() >= deadline:
            names = "; ".join(f"{agent.role} {agent.name}: {agent.refuses}" for agent in refusing)
            raise CliError(Exit.TIMED_OUT, f"accepted, and still refused by {names}")
        await env.clock.sleep(POLL_S)
    print("every daemon that is registered obeys it")
