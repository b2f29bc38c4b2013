"""Every fault and every command of the lab, with all the lab's secrets looked for in all that comes out of it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bgplb_lab import faults, observe
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.scenario import MOVE_TIMEOUT_S
from bgplb_lab.topology import Auth
from bgplb_lab.world import World

from tests.every_command import OF_THE_LAB
from tests.lab.looking import Look
from tests.lab.standing import need_prerequisites

FAULTS = {
    "power-cut": "--on standby",
    "link-cut": "--on standby",
    "cluster-link-cut": "--on active",
    "one-way-cut": "in --on active",
    "edge-link-cut": "edge-1 --on active",
    "loss": "5 --on active",
    "nat-remap": "--on nat-a",
    "wireguard-down": "--on active",
    "bird-kill": "--on standby",
    "bird-freeze": "--on active",
    "agent-kill": "--on active",
    "agent-freeze": "--on standby",
    "edge-agent-kill": "--on edge-1",
    "edge-bird-kill": "--on edge-1",
    "edge-reboot": "--on edge-1",
    "orchestrator-kill": "--on leader",
    "orchestrator-term": "--on leader",
    "orchestrator-freeze": "--on leader",
    "orchestrators-stop": "--on all",
    "etcd-kill": "--on etcd-leader",
    "etcd-freeze": "--on etcd-leader",
    "etcd-stop": "--on all",
    "clock-jump": "+1h --on leader",
    "partition": "etcd --on leader",
}
"""How each fault strikes."""
IN_A_LAB = {
    "lab up": ("--id {lab} --auth {auth}", "--id {lab}"),
    "lab status": ("--id {lab}", "--id {lab} --json"),
    "lab shell": ("orch-1 --id {lab}",),
    "lab exec": ("orch-1 --id {lab} -- bgplb status", "gw-z --id {lab} -- true"),
    "lab logs": ("orch-1 --id {lab} -n 1000", "gw-z --id {lab}"),
    "lab fault": tuple(f"{name} {how} --id {{lab}}" for name, how in FAULTS.items()),
    "lab heal": ("--all --id {lab}", "power-cut --on gw-a --id {lab}"),
    "lab down": ("--id {lab}", "--id {lab}"),
}
"""What the commands are told that need a lab; what comes second is refused, or another form."""
MAKING_ONE = {
    "lab demo": "--auth password --keep --json {folder}/record.json --picture {folder}/demo.svg",
    "lab scenario": "leader-killed-at-the-cut --keep --json {folder}/record.json",
    "lab bench failover": "--runs 1 --auth certificate --keep --json {folder}/record.json",
    "lab bench leader": "--runs 1 --auth password --keep --json {folder}/record.json",
    "lab bench idle": "--pools 1 --seconds 1 --keep --json {folder}/record.json",
    "lab bench soak": "--moves 2 --warm-after 1 --json {folder}/record.json",
}
"""What the commands are told that make a lab for themselves."""
IN_FORCE_S = 1.5
MEASURED = (0, 1)
"""Done, or done with a check that failed: what is measured is not judged here."""

pytestmark = [pytest.mark.root, pytest.mark.lab]


@pytest.fixture
def look() -> Iterator[Look]:
    """At a lab that does not stand yet; it is gone afterwards."""
    need_prerequisites()
    world = World(f"s{os.getpid()}", print)
    try:
        yield Look(world)
    finally:
        if world.exists():
            world.down()


def test_every_fault_and_command_is_looked_behind() -> None:
    """A new one has to be put into the tables above."""
    assert FAULTS.keys() == faults.FAULTS.keys()
    assert IN_A_LAB.keys() | MAKING_ONE.keys() == OF_THE_LAB


def run(look: Look, name: str, line: str, auth: Auth = Auth.NONE) -> int:
    """One of the commands above."""
    return look.run(*name.split(), *line.format(lab=look.world.lab_id, auth=auth).split())


def run_each(look: Look, *names: str) -> None:
    """These commands of IN_A_LAB: the first of each in vain only if it has to be."""
    for name in names:
        codes = [run(look, name, line) for line in IN_A_LAB[name]]
        assert codes[0] == 0, (name, codes)
        assert 2 not in codes, (name, codes)


def what_is_planted_is_found(world: World) -> None:
    """One that is put into a log, the store, a command line and an environment is seen in each; it is taken away."""
    look = Look(world)
    look.around()
    word = next(word for name, word in look.secrets.items() if name.startswith("gw-a/etc/bgplb/etcd."))
    log = world.log_folder("orch-1") / "planted.log"
    log.write_text(f'{{"event": "log-in", "password": "{word}"}}\n')
    etcdctl(world, "put", "/planted", word)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen([*sleeping, word]) as told, subprocess.Popen(sleeping, env={"PLANTED": word}) as given:
        look.around()
        told.kill()
        given.kill()
    look.inside()
    log.unlink()
    etcdctl(world, "del", "/planted")
    program = Path(sys.executable).name
    wanted = {"orch-1/planted.log", "the store", f"command line of {program}", f"environment of {program}"}
    assert {found.partition(" in ")[2] for found in look.found()} == wanted


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("auth", [Auth.CERTIFICATE, Auth.PASSWORD])
def test_no_secret_comes_out_of_a_lab_whatever_befalls_it(look: Look, auth: Auth) -> None:
    assert [run(look, "lab up", line, auth) for line in IN_A_LAB["lab up"]] == [0, 6]
    look.world.auth = auth
    observe.wait_settled(look.world, 2 * MOVE_TIMEOUT_S)
    run_each(look, "lab status", "lab shell", "lab exec")
    for line in IN_A_LAB["lab fault"]:
        assert run(look, "lab fault", line) == 0, look.printed
        time.sleep(IN_FORCE_S)
        look.around()
        run(look, "lab exec", IN_A_LAB["lab exec"][0])
        assert run(look, "lab heal", IN_A_LAB["lab heal"][0]) == 0, look.printed
        observe.wait_settled(look.world, 2 * MOVE_TIMEOUT_S)
    run_each(look, "lab logs", "lab heal")
    look.around()
    look.inside()
    assert look.found() == set()
    what_is_planted_is_found(look.world)
    assert [run(look, "lab down", line) for line in IN_A_LAB["lab down"]] == [0, 4]
    assert look.found() == set()


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MAKING_ONE)
def test_no_secret_comes_out_of_a_command_that_makes_a_lab(look: Look, tmp_path: Path, name: str) -> None:
    line = MAKING_ONE[name].format(folder=tmp_path)
    assert run(look, name, f"{line} --id {{lab}}") in MEASURED, look.printed
    if look.world.exists():
        look.world = World(look.world.lab_id, print)
        look.around()
        look.inside()
    for path in tmp_path.iterdir():
        look.see(path.name, path.read_text())
    assert "record.json" in look.seen
    assert look.found() == set()
