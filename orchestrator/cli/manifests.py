"""`bgplb manifests`: check the folder that states the intent, and see it accepted."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.environment import CliError, ConfigOption, Environment, Exit, environment, with_store
from orchestrator.cli.requests import ask_leader

if TYPE_CHECKING:
    from orchestrator.config.cli import CliConfig
    from orchestrator.config.intent import Intent
    from orchestrator.store.port import Store

ACCEPT_TIMEOUT_S = 10.0
POLL_S = 0.2

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check the folder of manifests (EIPPool and EdgeGateway, *.yaml and *.yml), and see it accepted.",
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder.")]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a folder differs from what the leader has accepted: objects as KIND/NAME."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]


@app.command()
def check(directory: Folder) -> None:
    """Check a folder by the same rules as the orchestrator; every problem is named at once. Changes nothing.

    \b
    Example:
      bgplb manifests check /etc/bgplb/manifests
    """
    intent = _read(directory)
    pools, groups = len(intent.pools), len(intent.edge_gateways)
    print(f"{directory}: good: {pools} EIPPool, {groups} EdgeGateway")


@app.command()
def apply(
    ctx: typer.Context,
    directory: Folder,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what was accepted and is not in the folder any more.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the order.")] = "apply",
    config: ConfigOption = None,
) -> None:
    """Check a folder, and wait until the leader has accepted what it says.

    DIR is the folder that the orchestrators read (`manifests` in their configuration). The leader takes up new and
    changed objects by itself. An object that is gone is deleted only if a running leader saw it go; --prune deletes
    also those that went while no leader was looking. Without it they are listed, and the exit code is 6.

    \b
    Examples:
      bgplb manifests apply /etc/bgplb/manifests
      bgplb manifests apply /etc/bgplb/manifests --prune --reason "pool-7 was returned"
    """
    env = environment(ctx)
    intent = _read(directory)
    before = with_store(env, config, lambda store, cli: compare(store, cli, intent))
    for sign, names in (("+", before.new), ("~", before.changed), ("-", before.missing)):
        for name in names:
            print(f"{sign} {name}")
    if before.missing and prune:
        print(ask_leader(env, config, "prune", "intent", reason))
    left = with_store(env, config, lambda store, cli: _wait(env, store, cli, intent, pruned=prune))
    if left.new or left.changed:
        names_left = ", ".join((*left.new, *left.changed))
        text = (
            f"not accepted within 10 s: {names_left}; is a leader running, and is {directory} the folder that it reads?"
        )
        raise CliError(Exit.TIMED_OUT, text)
    if left.missing:
        names_left = ", ".join(left.missing)
        if prune:
            raise CliError(
                Exit.TIMED_OUT, f"not deleted within 10 s: {names_left}; does the leader's folder hold them?"
            )
        raise CliError(Exit.REFUSED, f"in force and not in {directory}: {names_left}; delete them with --prune")
    print("accepted")


def _read(directory: Path) -> "Intent":
    from orchestrator.config.folder import read_now

    intent = read_now(directory)
    if not intent.ok:
        raise CliError(Exit.BAD_INPUT, "\n".join(str(problem) for problem in intent.problems))
    return intent


async def compare(store: "Store", cli: "CliConfig", intent: "Intent") -> Difference:
    """The difference between an intent and what is accepted. What is being deleted counts as gone already."""
    from fsm.records import EdgeGatewaySpec, PoolSpec
    from orchestrator.store.keys import Keys
    from orchestrator.store.records import EDGE_GATEWAY_KIND, POOL_KIND, decode

    keys = Keys(cli.etcd.prefix)
    accepted: dict[str, PoolSpec | EdgeGatewaySpec] = {}
    for kv in (await store.list(f"{keys.specs_prefix}{POOL_KIND}/")).items:
        pool = decode(kv.value, PoolSpec, kv.key)
        if not pool.deleted:
            accepted[f"{POOL_KIND}/{pool.name}"] = pool
    for kv in (await store.list(f"{keys.specs_prefix}{EDGE_GATEWAY_KIND}/")).items:
        group = decode(kv.value, EdgeGatewaySpec, kv.key)
        if not group.deleted:
            accepted[f"{EDGE_GATEWAY_KIND}/{group.name}"] = group.stated()
    wanted: dict[str, PoolSpec | EdgeGatewaySpec] = {f"{POOL_KIND}/{pool.name}": pool for pool in intent.pools}
    wanted |= {f"{EDGE_GATEWAY_KIND}/{group.name}": group for group in intent.edge_gateways}
    return Difference(
        new=tuple(sorted(set(wanted) - set(accepted))),
        changed=tuple(sorted(name for name in set(wanted) & set(accepted) if wanted[name] != accepted[name])),
        missing=tuple(sorted(set(accepted) - set(wanted))),
    )


async def _wait(env: Environment, store: "Store", cli: "CliConfig", intent: "Intent", *, pruned: bool) -> Difference:
    """What is left of the difference when it is gone, or when nobody has taken it up in time."""
    until = env.clock.now() + ACCEPT_TIMEOUT_S
    while True:
        left = await compare(store, cli, intent)
        done = not left.new and not left.changed and (not pruned or not left.missing)
        if done or env.clock.now() >= until:
            return left
        await env.clock.sleep(POLL_S)
