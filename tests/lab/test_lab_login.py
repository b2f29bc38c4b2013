"""A failover while etcd speaks TLS and every daemon and command logs in as its own user."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from bgplb_lab import absence, credentials, observe, topology
from bgplb_lab.absence import Absence, Without
from bgplb_lab.checks import UNPLANNED
from bgplb_lab.errors import LabError
from bgplb_lab.etcdctl import etcdctl
from bgplb_lab.probes import RouteWatch
from bgplb_lab.scenario import EDGE, MOVE_TIMEOUT_S, OWNER, PowerCut, cut_and_return, drain_back, settled_at_owner
from bgplb_lab.topology import Auth
from bgplb_lab.world import World

from tests.lab.standing import standing

pytestmark = [pytest.mark.root, pytest.mark.lab, pytest.mark.timeout(180)]

GUARDED = (Auth.CERTIFICATE, Auth.PASSWORD)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[World]:
    """A lab of one test's own; the parameter says how daemons log in."""
    world = World(f"t{os.getpid()}", print)
    world.auth = request.param
    with standing(world):
        yield world


def fail_over(lab: World, missing: Without | None) -> PowerCut:
    """A power cut by plan, its adoption, the return and the way back; checks all but the time that it took.

    With a leader at work it is the leader who records the move, and nothing is left to adopt.
    """
    settled_at_owner(lab, "a test begins")
    before = observe.wait_armed(lab, MOVE_TIMEOUT_S, OWNER)
    watch = RouteWatch(lab, EDGE)
    cut = cut_and_return(lab, watch, before, lambda: None, Absence(missing))
    watch.stop()
    assert missing is None or cut.executed == 1, "the edge's own move is adopted, once"
    assert observe.states_since(cut.after, observe.last_seq(before)) == UNPLANNED
    assert absence.executed(cut.returned, observe.last_seq(cut.after)) == 0
    assert cut.recovery.lost == 0
    drain = drain_back(lab, 2_500, 500)
    assert (drain.counts.sent, drain.counts.lost) == (2_500, 0)
    return cut


def strangers_are_refused(lab: World) -> None:
    """Whoever has no log-in, or another's, gets no further: the failover above was really one under access control."""
    command = ("env", "ETCDCTL_API=3", "etcdctl", f"--endpoints={topology.endpoints(lab.auth)['etcd-1']}")
    ask = ("get", "--prefix", "/bgplb/v1/leader")
    with pytest.raises(LabError):
        lab.inside("orch-1", *command, "--cacert=/etc/bgplb/ca.pem", *ask)
    if lab.auth is Auth.CERTIFICATE:
        operator = ("--cacert=/etc/bgplb/ca.pem", "--cert=/etc/bgplb/operator.pem", "--key=/etc/bgplb/operator.key")
        assert "/bgplb/v1/leader" in lab.inside("orch-1", *command, *operator, *ask)
        with pytest.raises(LabError, match="permission denied"):
            lab.inside("orch-1", *command, *operator, "put", "/bgplb/v1/leader", "x")
    assert "/bgplb/v1/leader" in etcdctl(lab, *ask)


@pytest.mark.parametrize("lab", [Auth.CERTIFICATE], indirect=True)
def test_a_pool_fails_over_and_back_with_certificates(lab: World) -> None:
    cut = fail_over(lab, None)
    assert cut.floor_ms is not None
    assert cut.outage.outage_ms - cut.outage.sched_gap_ms <= 1.3 * cut.floor_ms
    strangers_are_refused(lab)


@pytest.mark.chaos
@pytest.mark.parametrize("lab", GUARDED, indirect=True)
def test_a_pool_fails_over_while_the_store_forgets_who_was_logged_in(lab: World) -> None:
    """Members that start again know no token and no connection: everybody logs in anew, and the leader adopts."""
    cut = fail_over(lab, Without.ETCD)
    assert cut.adopted_s is not None
    strangers_are_refused(lab)


@pytest.mark.parametrize("auth", GUARDED)
def test_a_machine_is_given_its_own_log_in_and_no_other(auth: Auth) -> None:
    issuer = credentials.Issuer(auth)
    dealt = {name: dict(issuer.files(name)) for name in ("edge-1", "gw-a", "orch-1", "etcd-1", "client")}
    secret = {name: {text for path, text in files.items() if path != "ca.pem"} for name, files in dealt.items()}
    assert not secret["client"]
    assert secret["etcd-1"]
    assert not secret["edge-1"] & (secret["gw-a"] | secret["etcd-1"])
    stem = ".key" if auth is Auth.CERTIFICATE else ".password"
    assert {path for path in dealt["gw-a"] if path != "ca.pem"} >= {f"etcd{stem}"}
    assert f"root{stem}" not in dealt["gw-a"]
    assert dict(credentials.Issuer(Auth.NONE).files("gw-a")) == {}


def test_a_log_in_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    credentials.write(tmp_path, "passwords/root", "word\n")
    path = tmp_path / "passwords" / "root"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
