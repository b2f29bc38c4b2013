"""The edge's state on disk: one command is one line, and a power cut at any byte leaves a state that was saved."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsm.fence import FenceState, accept_all, execute_all, forget
from fsm.records import EdgePool, Plan
from orchestrator.agents import journal as journal_module
from orchestrator.agents.edge_state import EdgeState
from orchestrator.agents.journal import EdgeJournal, applied, difference
from orchestrator.agents.statefile import StateFileError, save, write
from tests.agents.fakes import WEB, base

DEFAULT = EdgeState("")
MANY = 1000


def fenced(state: EdgeState, epoch: int, *numbers: int) -> EdgeState:
    commands = [
        (
            f"pool-{n}",
            EdgePool((f"198.18.{n // 256}.{n % 256}/32",), "gw-a", epoch, plan=(Plan("gw-b", 9000, epoch),)),
            7,
        )
        for n in numbers
    ]
    after, refused = accept_all(state.fence, commands)
    assert not refused
    return replace(state, fence=after)


BIG = fenced(EdgeState("parking", base("edge", "edge-1", WEB)), 1, *range(MANY))


@pytest.fixture
def journal(tmp_path: Path) -> EdgeJournal:
    made = EdgeJournal(tmp_path / "edge.json")
    made.load(DEFAULT)
    return made


def loaded(journal: EdgeJournal) -> EdgeState:
    return EdgeJournal(journal.path).load(DEFAULT)


def changes(state: EdgeState) -> list[EdgeState]:
    """States that follow one another, in every way that a state changes."""
    moved, refused = execute_all(fenced(state, 2, 5, 6).fence, ["pool-5"])
    assert not refused
    steps = [fenced(state, 2, 5, 6)]
    steps.append(replace(steps[-1], fence=moved))
    steps.append(replace(steps[-1], fence=forget(moved, "pool-6", "pool-7")))
    steps.append(replace(steps[-1], base=replace(state.base, mtu=1300)))
    steps.append(replace(steps[-1], endpoints={"gw-a": "203.0.113.9:4242"}))
    steps.append(replace(steps[-1], endpoints={}))
    steps.append(fenced(steps[-1], 3, MANY + 1))
    return steps


def test_a_command_among_a_thousand_is_a_short_line_and_reads_back(journal: EdgeJournal) -> None:
    journal.save(BIG)
    whole = journal.path.read_bytes()
    for state in changes(BIG):
        before = journal.log_path.stat().st_size
        journal.save(state)
        assert journal.path.read_bytes() == whole, "the whole file is left alone"
        assert journal.log_path.stat().st_size - before < 3000 < len(whole) / 50
        assert loaded(journal) == state
    assert journal.path.stat().st_mode & 0o777 == journal.log_path.stat().st_mode & 0o777 == 0o600


def test_one_sync_for_a_thousand_commands(journal: EdgeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.save(BIG)
    synced: list[int] = []
    real = os.fsync

    def counted(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    journal.save(fenced(BIG, 2, *range(MANY)))
    assert len(synced) == 1
    journal.save(journal._saved or DEFAULT)
    assert len(synced) == 1, "and none for what is there already"


def test_a_state_goes_on_from_what_was_loaded(journal: EdgeJournal) -> None:
    journal.save(BIG)
    *states, last = changes(BIG)
    for state in states:
        again = EdgeJournal(journal.path)
        again.load(DEFAULT)
        again.save(state)
        assert loaded(again) == state
    journal = EdgeJournal(journal.path)
    journal.load(DEFAULT)
    journal.save(last)
    assert loaded(journal) == last


def test_a_power_cut_at_any_byte_of_a_line_leaves_the_state_before_it(journal: EdgeJournal) -> None:
    journal.save(BIG)
    first, second, third = changes(BIG)[:3]
    journal.save(first)
    length = journal.log_path.stat().st_size
    journal.save(second)
    log = journal.log_path.read_bytes()
    for cut in (length, length + 1, length + 9, (length + len(log)) // 2, len(log) - 1):
        journal.log_path.write_bytes(log[:cut])
        again = EdgeJournal(journal.path)
        assert again.load(DEFAULT) == first, cut
        again.save(third)
        assert loaded(again) == third, "and what comes after is not lost behind the torn line"
        journal.path.write_bytes(b"")  # back to the scene before
        save(journal.path, BIG)
        journal.log_path.write_bytes(log)


def test_a_power_cut_while_the_whole_file_is_replaced(journal: EdgeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "KEPT_BYTES", 100)
    journal._whole_bytes = 0
    journal.save(BIG)
    journal._whole_bytes = 0
    states = changes(BIG)
    journal.save(states[0])
    real = write

    def cut(path: Path, content: bytes) -> None:
        if path == journal.log_path:
            raise StateFileError("power cut")
        real(path, content)

    monkeypatch.setattr(journal_module, "write", cut)
    with pytest.raises(StateFileError):
        journal.save(states[1])
    assert loaded(journal) == states[1], "the journal of the old file is not applied to the new one"


def test_a_journal_does_not_grow_for_ever(journal: EdgeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "KEPT_BYTES", 5000)
    state = fenced(EdgeState("parking"), 1, 0)
    for epoch in range(2, 200):
        state = fenced(state, epoch, 0)
        journal.save(state)
        assert journal.log_path.stat().st_size < 6000
    assert loaded(journal) == state


def test_an_append_that_failed_is_not_continued(journal: EdgeJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.save(BIG)
    first, second = changes(BIG)[:2]
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 20:
            return real(descriptor, bytes(data)[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StateFileError, match=r"edge\.journal.*disk full"):
            journal.save(first)
    assert loaded(journal) == BIG
    journal.save(second)
    assert loaded(journal) == second


def test_a_file_that_was_moved_away_or_put_there_by_hand_ends_its_journal(journal: EdgeJournal) -> None:
    journal.save(BIG)
    journal.save(changes(BIG)[0])
    journal.path.rename(journal.path.with_name("away.json"))
    assert loaded(journal) is DEFAULT
    other = fenced(EdgeState("other"), 1, 0)
    save(journal.path, other)
    assert loaded(journal) == other


def test_damage_before_the_last_line_is_named(journal: EdgeJournal) -> None:
    journal.save(BIG)
    for state in changes(BIG)[:2]:
        journal.save(state)
    journal.log_path.write_bytes(journal.log_path.read_bytes().replace(b"pool-5", b"pool-4", 1))
    with pytest.raises(StateFileError, match=r"edge\.journal: line 2 is damaged; move it and edge\.json away"):
        loaded(journal)


def test_a_difference_leads_from_one_state_to_the_other() -> None:
    states = [BIG, *changes(BIG)]
    for old in states:
        for new in states:
            delta = difference(old, new)
            if delta is not None:
                assert applied(old, [delta]) == new
    lacking = replace(BIG, fence=FenceState(BIG.fence.pools, {}))
    assert difference(BIG, lacking) is None, "a number that is lost can't be said in a delta"
