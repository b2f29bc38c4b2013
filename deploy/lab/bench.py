"""`bgplb lab bench`: the commands that measure."""

import json
from typing import Annotated

import typer
from bgplb_lab import leadership, report, scale, scenario, soak
from bgplb_lab.absence import Without
from bgplb_lab.options import (
    AuthOption,
    EdgesOption,
    FamilyOption,
    JsonOption,
    KeepOption,
    NewIdOption,
    check_writable,
    out,
    probed_world,
    telling_errors,
    write,
)
from bgplb_lab.topology import Auth, Family, Profile

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure many runs.")

PoolsOption = Annotated[
    int,
    typer.Option("--pools", min=0, max=5000, help="Extra pools of one address each, all at the gateway that is cut."),
]

ProfileOption = Annotated[
    Profile, typer.Option("--profile", help="How soon a dead gateway is noticed: BFD 3 x 50, 3 x 10 or 3 x 300 ms.")
]


@app.command()
def failover(
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many power cuts.")] = 30,
    without: Annotated[
        Without | None,
        typer.Option("--without", help="What is missing at each cut; the edge then has only its plan."),
    ] = None,
    json_file: JsonOption = None,
    lab_id: NewIdOption = None,
    keep: KeepOption = False,
    family: FamilyOption = Family.BOTH,
    pools: PoolsOption = 0,
    auth: AuthOption = Auth.NONE,
    edges: EdgesOption = 1,
    profile: ProfileOption = Profile.FAST,
) -> None:
    """Power cuts of the active gateway, one after the other: outage against floor, return, drain back.

    Takes some 15 seconds a run. A run that goes wrong ends the bench; none is ever left out. With --without all
    members of etcd or all orchestrators are stopped before each cut, or the leader is killed at it; afterwards they
    are started again, and the move that the edge made by itself must be adopted exactly once.

    \b
    Examples:
      bgplb lab bench failover --runs 30 --json bench.json
      bgplb lab bench failover --runs 30 --without etcd
      bgplb lab bench failover --runs 10 --profile lan   BFD 3 x 10 ms instead of 3 x 50 ms
      bgplb lab bench failover --runs 10 --family 6
      bgplb lab bench failover --runs 10 --auth certificate
      bgplb lab bench failover --runs 10 --edges 2       by the leader; the floor is that of the slower edge
      bgplb lab bench failover --runs 3 --pools 1000     time to the last pool's route, by the edge's kernel
    """
    check_writable(json_file)
    if edges > 1 and (without or pools):
        raise typer.BadParameter("--edges 2 goes with neither --without nor --pools: no plan, and no count of many")
    with telling_errors():
        lab = probed_world(lab_id, family, auth, edges)
        lab.profile = profile
        if pools:
            document = scale.bench_failover(lab, pools, runs, keep)
            write(json_file, json.dumps(document, indent=2) + "\n")
            out.print(scale.failover_table(document))
            return
        document = scenario.bench_failover(lab, runs, keep, without)
        write(json_file, json.dumps(document, indent=2) + "\n")
        out.print(report.bench_table(document))


@app.command()
def leader(
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many leaders of each kind.")] = 20,
    json_file: JsonOption = None,
    lab_id: NewIdOption = None,
    keep: KeepOption = False,
    auth: AuthOption = Auth.NONE,
) -> None:
    """Leaders that end, asked to and killed in turn: how long until the next one's first write is in etcd.

    Takes some 15 seconds a run, of both kinds. A run that goes wrong ends the bench; none is ever left out.

    \b
    Examples:
      bgplb lab bench leader --runs 20 --json leader.json
    """
    check_writable(json_file)
    with telling_errors():
        document = leadership.bench(probed_world(lab_id, Family.BOTH, auth), runs, keep)
        write(json_file, json.dumps(document, indent=2) + "\n")
        out.print(leadership.table(document))


@app.command()
def idle(
    pools: PoolsOption = 1000,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long to measure.")] = scale.IDLE_S,
    json_file: JsonOption = None,
    lab_id: NewIdOption = None,
    keep: KeepOption = False,
) -> None:
    """What each daemon uses of a core and of memory while nothing happens, with many pools at rest.

    \b
    Examples:
      bgplb lab bench idle --pools 1000
      bgplb lab bench idle --pools 1000 --seconds 60 --json idle.json
    """
    check_writable(json_file)
    with telling_errors():
        document = scale.bench_idle(probed_world(lab_id, Family.BOTH), pools, seconds, keep)
        write(json_file, json.dumps(document, indent=2) + "\n")
        out.print(scale.idle_table(document))


app.command("soak")(telling_errors()(soak.command))
