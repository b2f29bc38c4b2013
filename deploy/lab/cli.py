"""`bgplb lab`: the commands."""

import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from bgplb_lab import bench, control, faults, report, roles, scenario, script, stage, world
from bgplb_lab.errors import NotFound
from bgplb_lab.options import (
    AuthOption,
    EdgesOption,
    FamilyOption,
    JsonOption,
    KeepOption,
    NewIdOption,
    PictureOption,
    check_writable,
    out,
    probed_world,
    say,
    telling_errors,
    write,
)
from bgplb_lab.topology import Auth, Family
from rich.table import Table

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""A network of namespaces in which the real daemons fail over for real. Needs root; changes nothing outside.

    \b
    See it fail over, every lost packet counted, and be gone again, in about a minute:
      bgplb lab demo --picture failover.svg
    \b
    Look around and break things yourself:
      bgplb lab up
      bgplb lab exec orch-1 -- bgplb status
      bgplb lab fault power-cut --on gw-a
      bgplb lab exec orch-1 -- bgplb fsm dump --history 5
      bgplb lab heal power-cut --on gw-a
      bgplb lab down
    \b
    Machines: client, transit, edge-1, nat-a, nat-b, gw-a, gw-b, worker-1, etcd-1 to etcd-3, orch-1 to orch-3.
    """,
)
app.add_typer(bench.app, name="bench")

IdOption = Annotated[
    str | None,
    typer.Option("--id", help="Which lab; not needed while there is only one.", envvar="BGPLB_LAB", show_default=False),
]
OnOption = Annotated[
    str, typer.Option("--on", help="The machine, or `all` for the faults that strike everywhere.", show_default=True)
]


def the_lab(lab_id: str | None) -> world.World:
    """The lab meant: the one named, or the only one there is."""
    labs = world.existing_labs()
    if lab_id is None:
        if not labs:
            raise NotFound("no lab is up: `bgplb lab up` makes one")
        if len(labs) > 1:
            raise NotFound(f"several labs are up ({', '.join(labs)}): say which with --id")
        lab_id = labs[0]
    return world.World(lab_id, say)


class Outside(StrEnum):
    """What tunnels may travel over."""

    IPV4 = "4"
    IPV6 = "6"


@app.command()
def up(
    lab_id: Annotated[str, typer.Option("--id", help="Name of the lab; two labs can stand side by side.")] = "lab",
    daemons: Annotated[bool, typer.Option(help="Start orchestrators, agents and their BIRD too.")] = True,
    outside: Annotated[
        Outside, typer.Option("--outside", help="IP version that the tunnels travel over.")
    ] = Outside.IPV4,
    auth: AuthOption = Auth.NONE,
    edges: EdgesOption = 1,
) -> None:
    """Make the network, start every service and leave it standing.

    \b
    Examples:
      bgplb lab up
      bgplb lab up --id second        beside the first
      bgplb lab up --no-daemons       network, etcd and the operator's BIRD, none of ours
      bgplb lab up --outside 6        tunnels over IPv6
      bgplb lab up --auth password    etcd over TLS, with a user for each daemon
      bgplb lab up --edges 2          the upper half of the pool comes in by edge-2
    """
    with telling_errors():
        lab = world.World(lab_id, say)
        lab.outside, lab.auth, lab.edges = Family(outside), auth, edges
        lab.up(daemons)
        say(f"lab {lab_id} is up; `bgplb lab down --id {lab_id}` removes it")


@app.command()
def down(
    lab_id: IdOption = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all labs of this machine.")] = False,
) -> None:
    """Remove a lab with everything in it, also one that crashed half-way."""
    with telling_errors():
        labs = [world.World(name, say) for name in world.existing_labs()] if every else [the_lab(lab_id)]
        for lab in labs:
            lab.down()
            say(f"lab {lab.lab_id} is gone")


@app.command()
def status(
    lab_id: IdOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Machines, their services, and the faults in force."""
    with telling_errors():
        lab = the_lab(lab_id)
        found = describe(lab)
        if as_json:
            out.print_json(json.dumps(found))
            return
        table = Table(title=f"lab {lab.lab_id}", title_justify="left")
        for column in ("machine", "process", "services"):
            table.add_column(column)
        for name, machine in found["machines"].items():
            table.add_row(name, str(machine["pid"] or "off"), ", ".join(machine["services"]))
        out.print(table)
        for name, node, *value in found["faults"]:
            out.print(f"in force: {' '.join((name, *value))} on {node}")


def describe(lab: world.World) -> dict[str, Any]:
    """What `status` shows."""
    pids = lab.pids()
    machines: dict[str, object] = {}
    for name in lab.machines:
        services = []
        if name in pids:
            for service in control.command(pids[name], {"cmd": "status"})["services"]:
                word = "up" if service["pid"] else ("held" if service["held"] else "down")
                services.append(f"{service['name']} {word}")
        machines[name] = {"pid": pids.get(name), "services": services}
    with lab.state() as state:
        return {"schema": 1, "id": lab.lab_id, "machines": machines, "faults": state["faults"]}


def become(lab: world.World, node: str, argv: list[str]) -> None:
    """Replace this process by a program inside a machine, with `bgplb` on its PATH."""
    command = control.enter(lab.pid(node), argv, whole=True)
    programs = Path(lab.programs.bgplb).parent
    environment = {**os.environ, "PATH": f"{programs}:{control.SERVICE_PATH}", "BGPLB_LAB": lab.lab_id}
    os.chdir("/")
    os.execvpe(command[0], command, environment)


@app.command()
def shell(node: Annotated[str, typer.Argument(help="Machine, e.g. gw-a.")], lab_id: IdOption = None) -> None:
    """A shell inside a machine, with `bgplb` on its PATH.

    \b
    Example:
      bgplb lab shell gw-a
    """
    with telling_errors():
        lab = the_lab(lab_id)
        os.environ["PS1"] = f"{node}:\\w# "
        become(lab, node, ["bash", "--norc", "--noprofile"])


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute(
    node: Annotated[str, typer.Argument(help="Machine, e.g. orch-1.")],
    argv: Annotated[list[str], typer.Argument(help="Program and arguments, after `--`.")],
    lab_id: IdOption = None,
) -> None:
    """Run a program inside a machine, with `bgplb` on its PATH.

    \b
    Examples:
      bgplb lab exec orch-1 -- bgplb status
      bgplb lab exec edge-1 -- ip route
      bgplb lab exec gw-a -- birdc -s /run/bgplb/bird.ctl show protocols
    """
    with telling_errors():
        become(the_lab(lab_id), node, argv)


@app.command()
def logs(
    node: Annotated[str, typer.Argument(help="Machine.")],
    service: Annotated[str | None, typer.Argument(help="One service; without it, all of the machine.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines arrive.")] = False,
    lab_id: IdOption = None,
) -> None:
    """What the services of a machine wrote; it outlives their restarts and power cuts.

    \b
    Examples:
      bgplb lab logs orch-1
      bgplb lab logs gw-a node-agent --follow
    """
    with telling_errors():
        lab = the_lab(lab_id)
        lab.machine(node)
        files = sorted(lab.log_folder(node).glob(f"{service or '*'}.log"))
        if not files:
            raise NotFound(f"no log of {service or 'any service'} on {node} in {lab.log_folder(node)}")
        argv = ["tail", "-n", str(lines), *(["-F"] if follow else []), *map(str, files)]
        os.execvp(argv[0], argv)


def fault_list() -> str:
    """The faults, a line each, for the help."""
    names = {each.name: f"{each.name} {each.value.name.upper() if each.value else ''}" for each in faults.EVERY_FAULT}
    width = max(len(text) for text in names.values())
    return "\n".join(f"  {names[each.name]:{width}}  {each.teaches}" for each in faults.EVERY_FAULT)


def act_on(lab_id: str | None, act: Callable[[world.World], object]) -> None:
    """Do one thing to a lab, telling errors."""
    with telling_errors():
        act(the_lab(lab_id))


FAULT_HELP = f"""Break something until it is healed.

\b
{fault_list()}
\b
Examples:
  bgplb lab fault power-cut --on gw-a
  bgplb lab fault one-way-cut in --on active
  bgplb lab fault etcd-freeze --on etcd-leader
  bgplb lab fault etcd-stop
\b
Machines may be named by what they are just now: {", ".join(roles.ROLES)}.
"""


ValueArgument = Annotated[
    str | None, typer.Argument(help="What some faults want to be told, see above.", show_default=False)
]


@app.command(help=FAULT_HELP)
def fault(
    name: Annotated[str, typer.Argument(help="Which fault.")],
    value: ValueArgument = None,
    on: OnOption = "all",
    lab_id: IdOption = None,
) -> None:
    """See FAULT_HELP."""
    act_on(lab_id, lambda lab: faults.strike(lab, name, roles.resolve(lab, on), value))


@app.command()
def heal(
    name: Annotated[str | None, typer.Argument(help="Which fault.", show_default=False)] = None,
    value: ValueArgument = None,
    on: OnOption = "all",
    every: Annotated[bool, typer.Option("--all", help="Everything that is in force.")] = False,
    lab_id: IdOption = None,
) -> None:
    """Mend what `fault` broke: power on, cables in, services started, frozen ones go on.

    \b
    Examples:
      bgplb lab heal power-cut --on gw-a
      bgplb lab heal --all
    """
    if every == (name is not None):
        raise typer.BadParameter("name a fault, or say --all")
    act_on(lab_id, lambda lab: faults.heal_all(lab, say) if name is None else faults.heal(lab, name, on, value))


@app.command()
def demo(
    json_file: JsonOption = None,
    picture_file: PictureOption = None,
    lab_id: NewIdOption = None,
    keep: KeepOption = False,
    family: FamilyOption = Family.BOTH,
    auth: AuthOption = Auth.NONE,
    edges: EdgesOption = 1,
) -> None:
    """Make the lab, cut the power of the active gateway under probes, drain back, check everything, remove the lab.

    Takes about a minute. Exits with 0 only when every check holds.

    \b
    Example:
      bgplb lab demo --json demo.json --picture demo.svg
    """
    check_writable(json_file, picture_file)
    with telling_errors():
        result = scenario.demo(probed_world(lab_id, family, auth, edges), keep)
        write(json_file, json.dumps(result.document, indent=2) + "\n")
        write(picture_file, result.svg)
        out.print(report.demo_tables(result.document))
        if not result.ok:
            raise typer.Exit(1)


@app.command("scenario")
def play(
    file: Annotated[str, typer.Argument(help="A scenario file, or the name of one that comes with the lab.")],
    json_file: JsonOption = None,
    lab_id: NewIdOption = None,
    keep: KeepOption = False,
) -> None:
    """Make a lab, let a scenario happen in it under probes, check what it expects, remove the lab.

    A scenario is a YAML file of steps (faults, cures, pauses, waits, moves) and of expectations (owner, moves, lost
    packets, outage as a multiple of the floor). Exits with 0 only when every expectation holds, with 3 when the file
    is not as it should be.

    \b
    Examples:
      bgplb lab scenario flapping-active
      bgplb lab scenario my-worst-night.yaml --json night.json
    """
    check_writable(json_file)
    with telling_errors():
        read = script.load(script.find(file))
        document = stage.play(world.World(lab_id or world.new_lab_id(), say), read, keep)
        write(json_file, json.dumps(document, indent=2) + "\n")
        out.print(report.scenario_tables(document))
        if not all(check["ok"] for check in document["checks"]):
            raise typer.Exit(1)
