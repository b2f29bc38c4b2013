"""`bgplb status`: pools, gateways and edges at a glance."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.environment import ConfigOption, Environment, SocketOption, ask_socket, environment, with_store
from orchestrator.cli.output import Format, age, edge_texts, structured, table

if TYPE_CHECKING:
    from orchestrator.config.cli import CliConfig
    from orchestrator.store.keys import Keys
    from orchestrator.store.port import KeyValue, Store

POLL_S = 0.1

OutputOption = Annotated[Format, typer.Option("--output", "-o", metavar="FORMAT", help="table, json, yaml or wide.")]


def status(
    ctx: typer.Context, output: OutputOption = Format.TABLE, config: ConfigOption = None, socket: SocketOption = None
) -> None:
    """Show every pool, gateway and edge as the store has them.

    Whether an agent is alive is seen by looking twice, so this takes a moment: up to a second when one is silent.
    With --socket a daemon answers from what it knows, also while etcd is down.

    \b
    Examples:
      bgplb status
      bgplb status -o wide
      bgplb status -o json | jq '.pools[] | {name, state, owner}'
      bgplb status --socket /run/bgplb/orch-1.sock
    """
    env = environment(ctx)
    found = ask_socket(socket, {"cmd": "status"}) if socket is not None else _from_store(env, config)
    if not structured(found, output):
        _show(found, wide=output is Format.WIDE)


def _from_store(env: Environment, config: Any) -> dict[str, Any]:
    async def run(store: "Store", cli: "CliConfig") -> dict[str, Any]:
        from orchestrator import view
        from orchestrator.store.keys import Keys

        keys = Keys(cli.etcd.prefix)
        earlier = await _list(store, keys.heartbeats_prefix)
        later = await _second_look(env, store, keys, earlier)
        began = env.clock.now()
        items: dict[str, KeyValue] = dict(later)
        revision = 0
        for prefix in (
            keys.agents_prefix,
            keys.specs_prefix,
            keys.machines_prefix,
            keys.observed_all_prefix,
            keys.leader,
            keys.meta,
        ):
            snapshot = await store.list(prefix)
            revision = max(revision, snapshot.revision)
            items |= {kv.key: kv for kv in snapshot.items}
        age_ms = round((env.clock.now() - began) * 1000)
        alive = view.beats(earlier, items, keys)
        return view.status(items, keys, alive, revision=revision, age_ms=age_ms)

    return with_store(env, config, run)


async def _list(store: "Store", prefix: str) -> "dict[str, KeyValue]":
    return {kv.key: kv for kv in (await store.list(prefix)).items}


async def _second_look(
    env: Environment, store: "Store", keys: "Keys", earlier: "dict[str, KeyValue]"
) -> "dict[str, KeyValue]":
    """Look until every heartbeat was written anew, or for the time after which a silent agent is stale."""
    from fsm.types import STALE_AFTER_MS

    until = env.clock.now() + STALE_AFTER_MS / 1000
    while True:
        await env.clock.sleep(POLL_S)
        later = await _list(store, keys.heartbeats_prefix)
        moved = all(key not in later or later[key].mod_revision != kv.mod_revision for key, kv in earlier.items())
        if moved or env.clock.now() >= until:
            return later


def _show(found: dict[str, Any], *, wide: bool) -> None:
    leader = found["leader"]["name"] if found.get("leader") else "nobody: no orchestrator leads, failover by plan only"
    store = found["store"]
    print(f"leader {leader}; store revision {store['revision']}, seen {age(store['age_ms'])} ago\n")
    _show_pools(found["pools"], wide=wide)
    print()
    columns = ["GATEWAY", "AGENT", "READY", "SESSION", "PROBE", "JUDGEMENT", "CARRIES", "WHY NOT READY"]
    keys = ["name", "agent", "ready", "session", "probe", "judgement", "carries", "not_ready"]
    if wide:
        columns[1:1], keys[1:1] = ["GROUP"], ["group"]
    table(columns, [[gateway[key] for key in keys] for gateway in found["gateways"]], "no gateways")
    print()
    columns, keys = (
        ["EDGE", "AGENT", "BIRD", "HIGHEST EPOCH", "PROBLEMS"],
        ["name", "agent", "bird", "highest_epoch", "problems"],
    )
    table(columns, [[edge[key] for key in keys] for edge in found["edges"]], "no edges")
    for problem in found.get("problems", []):
        print(f"problem: {problem}")


def _show_pools(pools: list[dict[str, Any]], *, wide: bool) -> None:
    columns = ["POOL", "STATE", "OWNER", "STANDBY", "EPOCH", "SINCE", "CONDITIONS"]
    if wide:
        columns += ["PREFIXES", "EDGES", "CAUSE", "LAST MOVE", "SUPERSEDED PLAN"]
    rows = []
    for pool in pools:
        conditions = [condition["type"] for condition in pool["conditions"]]
        row = [pool["name"], pool["state"], pool["owner"], pool["standby"], pool["epoch"], pool["since"], conditions]
        if wide:
            row += [pool["prefixes"], edge_texts(pool["edges"]), pool["cause"], move_text(pool["last_move"])]
            row.append(plan_text(pool["superseded"]))
        rows.append(row)
    table(columns, rows, "no pools")


def move_text(move: dict[str, Any] | None) -> str:
    """The last move in a few words."""
    if not move:
        return ""
    text = f"{move.get('from') or '-'} -> {move.get('to')}"
    if "outage_estimate_ms" in move:
        margin = move.get("outage_estimate_plus_minus_ms")
        text += f", about {move['outage_estimate_ms']:.0f} ms" + (f" +/- {margin} ms" if margin is not None else "")
        text += " without answered probes"
    return text


def plan_text(plan: dict[str, Any] | None) -> str:
    """The last superseded plan in a few words."""
    if not plan:
        return ""
    return f"{plan['epoch']} for {plan['target']} by {plan['edge']}, superseded by {plan['by_epoch']}"
