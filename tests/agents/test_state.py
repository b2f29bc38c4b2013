"""What an agent keeps on disk: whole or not at all, and one process at a time."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsm.fence import Accepted, FenceState
from fsm.records import EdgePool, Plan
from orchestrator.agents.edge_state import EdgeState, released, told
from orchestrator.agents.instance import Instance, InstanceError
from orchestrator.agents.node_state import NodeState
from orchestrator.agents.statefile import StateFileError, load, save
from tests.agents.fakes import WEB, base
from tests.agents.node_world import node_pool

EDGE = EdgeState(
    "parking",
    base("edge", "edge-1", WEB),
    FenceState({"web": Accepted(EdgePool(WEB, "gw-a", 3, plan=(Plan("gw-b", 4, 3),)), 17)}, {WEB[0]: 3}),
)
NODE = NodeState(base("node", "gw-a", WEB), {"web": node_pool(True, 3)}, {"edge-1": "203.0.113.1:51820"})


@pytest.mark.parametrize("state", [EDGE, NODE], ids=["edge", "node"])
def test_it_reads_back_as_it_was(tmp_path: Path, state: object) -> None:
    path = tmp_path / "deep" / "state.json"
    save(path, state)
    assert load(path, type(state), None) == state
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["state.json"], "and no draft is left"


def test_without_a_file_it_is_the_default(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json", EdgeState, EdgeState("x")) == EdgeState("x")


@pytest.mark.parametrize("damage", [b"", b"{half", b'{"schema": 99}', b"\xff\xfe", b'{"parking_key": 7}'])
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "edge.json"
    path.write_bytes(damage)
    with pytest.raises(StateFileError, match=r"edge\.json") as caught:
        load(path, EdgeState, EdgeState("x"))
    assert "move the file away" in str(caught.value)


def test_a_power_cut_while_it_is_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "edge.json"
    save(path, EDGE)

    def power_cut(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(StateFileError, match=r"edge\.json"):
        save(path, EdgeState("other"))
    assert load(path, EdgeState, None) == EDGE


def test_a_large_state_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """write(2) may take less than it is given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:100]))
    save(tmp_path / "edge.json", EDGE)
    assert load(tmp_path / "edge.json", EdgeState, None) == EDGE


def test_an_installation_keeps_its_name_and_admits_one_process(tmp_path: Path) -> None:
    first = Instance(tmp_path / "state", lambda: "id-1")
    with pytest.raises(InstanceError, match="another process with this state_dir"):
        Instance(tmp_path / "state", lambda: "id-2")
    first.close()
    assert Instance(tmp_path / "state", lambda: "id-3").id == "id-1"


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(InstanceError, match="state_dir must be a folder"):
        Instance(tmp_path / "state", lambda: "id-1")


def told_of(state: EdgeState, *gateways: str, **fields: object) -> EdgeState:
    """A base with the tunnels of these gateways only."""
    whole = base("edge", "edge-1", WEB)
    tunnels = tuple(replace(t, **fields) for t in whole.tunnels if t.name in gateways)  # type: ignore[arg-type]
    return told(state, replace(whole, tunnels=tunnels))


def names(state: EdgeState) -> list[str]:
    return [tunnel.name for tunnel in state.base.tunnels]


def test_a_tunnel_that_carries_a_pool_stays_when_nobody_speaks_of_it() -> None:
    alone = told_of(EDGE)
    assert (names(alone), set(alone.kept)) == (["gw-a"], {"gw-a"}), "gw-b carries nothing"
    assert released(alone) == alone
    moved = replace(alone, fence=FenceState({"web": Accepted(EdgePool(WEB, "gw-b", 4), 18)}, {WEB[0]: 4}))
    assert (names(released(moved)), set(released(moved).kept)) == ([], set())


def test_a_tunnel_that_is_spoken_of_again_is_kept_no_more() -> None:
    again = told_of(told_of(EDGE), "gw-a", "gw-b")
    assert (names(again), again.kept) == (["gw-a", "gw-b"], frozenset())


def test_a_deleted_pool_keeps_no_tunnel_and_no_two_tunnels_have_one_number() -> None:
    deleted = FenceState({"web": Accepted(EdgePool(WEB, None, 4, deleted=True), 18)}, {WEB[0]: 4})
    assert names(told_of(replace(EDGE, fence=deleted))) == []
    assert names(told_of(EDGE, "gw-b", slot=0)) == ["gw-b"], "its number is another's by now"
