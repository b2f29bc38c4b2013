"""`bgplb fsm`: the machines themselves: where each stands and how it came there."""

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.environment import (
    CliError,
    ConfigOption,
    Environment,
    Exit,
    SocketOption,
    ask_socket,
    environment,
    with_store,
)
from orchestrator.cli.output import age, edge_texts, structured, table

if TYPE_CHECKING:
    from orchestrator.config.cli import CliConfig
    from orchestrator.store.port import KeyValue, Store

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The state machines: where each stands, how it came there, and the table that they follow.",
)


class DumpFormat(enum.StrEnum):
    """Formats of a dump."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    MERMAID = "mermaid"
    DOT = "dot"


@app.command()
def dump(
    ctx: typer.Context,
    pool: Annotated[
        str | None, typer.Argument(metavar="[POOL]", help="Only this pool; all of them if not given.")
    ] = None,
    output: Annotated[
        DumpFormat,
        typer.Option("--output", "-o", metavar="FORMAT", help="table, wide, json, yaml, mermaid or dot."),
    ] = DumpFormat.TABLE,
    history: Annotated[
        int, typer.Option("--history", metavar="N", min=0, max=200, help="The newest N transitions of each, 0 to 200.")
    ] = 0,
    config: ConfigOption = None,
    socket: SocketOption = None,
) -> None:
    """Show every machine: state, owner, epoch, plan, evidence, and with --history how it came there.

    From etcd, or with --socket from what any replica knows, also while etcd is down. mermaid and dot draw the table
    with the current states filled.

    \b
    Examples:
      bgplb fsm dump
      bgplb fsm dump external-ip-pool-1 --history 10
      bgplb fsm dump -o json --history 200 > case.json
      bgplb fsm dump -o dot | dot -Tsvg > now.svg
      bgplb fsm dump --socket /run/bgplb/orch-2.sock
    """
    env = environment(ctx)
    if socket is not None:
        found = ask_socket(socket, {"cmd": "dump", "history": history})
    else:
        found = _from_store(env, config, pool, history)
    machines: list[dict[str, Any]] = found["machines"]
    if pool is not None:
        machines = found["machines"] = [machine for machine in machines if machine["name"] == pool]
    if pool is not None and not machines:
        raise CliError(Exit.NOT_FOUND, f"there is no pool '{pool}'; 'bgplb fsm dump' lists all")
    if output in (DumpFormat.MERMAID, DumpFormat.DOT):
        _draw(output, machines)
    elif not structured(found, output):
        _show(found, wide=output is DumpFormat.WIDE)


@app.command("table")
def show_table() -> None:
    """Print the table that a pool follows: states with deadlines, rows, and every ignored event with its reason.

    \b
    Example:
      bgplb fsm table | less
    """
    from fsm.diagram import markdown_table
    from fsm.pool import POOL

    print(markdown_table(POOL), end="")


def _from_store(env: Environment, config: Any, pool: str | None, history: int) -> dict[str, Any]:
    async def run(store: "Store", cli: "CliConfig") -> dict[str, Any]:
        from orchestrator import view
        from orchestrator.store.keys import Keys, MachineKey

        keys = Keys(cli.etcd.prefix)
        began = env.clock.now()
        snapshot = await store.list(keys.machines_prefix)
        items: dict[str, KeyValue] = {kv.key: kv for kv in snapshot.items}
        for key in list(items) if history else ():
            parsed = keys.parse(key)
            if isinstance(parsed, MachineKey) and pool in (None, parsed.name):
                entries = await store.list(keys.history_prefix(parsed.type, parsed.name))
                items |= {kv.key: kv for kv in entries.items}
        age_ms = round((env.clock.now() - began) * 1000)
        return view.dump(items, keys, revision=snapshot.revision, age_ms=age_ms, history=history, pool=pool)

    return with_store(env, config, run)


def _draw(output: DumpFormat, machines: list[dict[str, Any]]) -> None:
    from fsm import diagram
    from fsm.pool import POOL

    states = {machine["state"] for machine in machines} & set(POOL.states)
    draw = diagram.mermaid if output is DumpFormat.MERMAID else diagram.dot
    print(draw(POOL, states), end="")


def _show(found: dict[str, Any], *, wide: bool) -> None:
    print(f"store revision {found['revision']}, seen {age(found['age_ms'])} ago\n")
    columns = ["TYPE", "NAME", "STATE", "OWNER", "TARGET", "EPOCH", "PLAN", "SINCE", "CAUSE"]
    if wide:
        columns += ["CONDITIONS", "EDGES", "EVIDENCE"]
    rows = []
    for machine in found["machines"]:
        plan = [f"{step['target']}@{step['epoch']}" for step in machine["plan"]]
        row: list[object] = [machine[key] for key in ("type", "name", "state", "owner", "target", "epoch")]
        row += [plan, machine["since"], machine["cause"]]
        if wide:
            row.append([f"{c['type']}: {c['message'] or c['reason']}" for c in machine["conditions"]])
            row.append(edge_texts(machine["edges"]))
            row.append([f"{key}={value}" for key, value in machine["evidence"].items()])
        rows.append(row)
    table(columns, rows, "no machines")
    for machine in found["machines"]:
        if machine["history"]:
            print(f"\n{machine['type']}/{machine['name']}")
            _show_history(machine["history"])
    for problem in found.get("problems", []):
        print(f"problem: {problem}")


def _show_history(history: list[dict[str, Any]]) -> None:
    columns = ["SEQ", "AT", "FROM", "TO", "EVENT", "EPOCH", "REVISION", "CAUSE", "PHASES"]
    rows = []
    for entry in history:
        phases = [f"{name} {value:.1f} ms" for name, value in entry["phases_ms"].items()]
        row = [entry[key] for key in ("seq", "at", "from", "to", "event", "epoch", "revision", "cause")]
        rows.append([*row, phases])
    table(columns, rows, "no transitions")
