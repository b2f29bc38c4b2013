"""`bgplb store`: a store that is refused gets a generation that is obeyed, and numbers above all that were used."""

from fsm.records import AgentRecord
from orchestrator.store.generation import Meta
from orchestrator.store.records import decode, encode
from tests.cli.conftest import Run
from tests.cli.stand_ins import KEYS, Stage

REFUSAL = "the store went back to revision 5"


def refuse(stage: Stage, *who: tuple[str, str], highest: int = 0, generation: str = "old") -> None:
    for role, name in who:
        record = AgentRecord(name, role, "i", "1", generation=generation, refuses=REFUSAL, highest_epoch=highest)
        stage.put(KEYS.agent(role, name), record)


def meta(stage: Stage) -> Meta:
    return decode(stage.server.items[KEYS.meta].value, Meta)


def counter(stage: Stage) -> int:
    return int(stage.server.items[KEYS.epoch_counter].value)


def obey_when_accepted(stage: Stage) -> None:
    """The daemons that are played here look again at each turn of the clock."""
    sleep = stage.clock.sleep

    async def and_look(seconds: float) -> None:
        await sleep(seconds)
        if KEYS.meta in stage.server.items:
            for key, kv in list(stage.server.items.items()):
                if key.startswith(KEYS.agents_prefix):
                    record = decode(kv.value, AgentRecord)
                    if record.generation in meta(stage).accepts:
                        stage.put(key, AgentRecord(record.name, record.role, "i", "1", generation="new"))

    stage.clock.sleep = and_look  # type: ignore[method-assign]


def test_accept_raises_the_counter_above_every_edge_and_names_the_generations_before(
    bgplb: Run, on_stage: Stage
) -> None:
    on_stage.put(KEYS.meta, Meta("present", accepts=("ancient",)))
    on_stage.put(KEYS.epoch_counter, encode(7))
    refuse(on_stage, ("edge", "edge-1"), highest=12)
    refuse(on_stage, ("node", "gw-a"), ("orchestrator", "orch-1"), generation="older")
    obey_when_accepted(on_stage)
    result = bgplb("store", "accept")
    assert result.exit_code == 0, result.stderr
    assert "edge edge-1: highest number 12" in result.stdout
    assert "the next number is 13" in result.stdout
    assert "every daemon that is registered obeys it" in result.stdout
    assert counter(on_stage) == 12
    assert meta(on_stage).accepts == ("ancient", "old", "older", "present")
    assert meta(on_stage).generation not in meta(on_stage).accepts


def test_the_counter_never_goes_down(bgplb: Run, on_stage: Stage) -> None:
    on_stage.put(KEYS.epoch_counter, encode(40))
    refuse(on_stage, ("edge", "edge-1"), highest=12)
    obey_when_accepted(on_stage)
    assert bgplb("store", "accept").exit_code == 0
    assert counter(on_stage) == 40


def test_accept_waits_for_every_edge_and_names_the_one_that_is_missing(bgplb: Run, on_stage: Stage) -> None:
    refuse(on_stage, ("edge", "edge-1"), highest=12)
    obey_when_accepted(on_stage)
    began = on_stage.clock.now()
    result = bgplb("store", "accept", "--edge", "edge-2")
    assert result.exit_code == 6
    assert "edge-2" in result.stderr
    assert "--without" in result.stderr
    assert on_stage.clock.now() - began >= 10
    assert KEYS.meta not in on_stage.server.items
    assert bgplb("store", "accept", "--edge", "edge-2", "--without", "edge-2").exit_code == 0


def test_accept_where_nobody_refuses_changes_nothing(bgplb: Run, on_stage: Stage) -> None:
    before = dict(on_stage.server.items)
    result = bgplb("store", "accept")
    assert (result.exit_code, "nobody refuses" in result.stderr) == (6, True)
    kept = {key: kv for key, kv in on_stage.server.items.items() if not key.startswith(KEYS.heartbeats_prefix)}
    assert kept == {key: kv for key, kv in before.items() if not key.startswith(KEYS.heartbeats_prefix)}


def test_an_empty_store_is_not_accepted_without_an_edges_word(bgplb: Run, on_stage: Stage) -> None:
    on_stage.server.wipe()
    refuse(on_stage, ("node", "gw-a"))
    result = bgplb("store", "accept")
    assert (result.exit_code, "no edge has told" in result.stderr) == (6, True)
    assert KEYS.meta not in on_stage.server.items


def test_who_still_refuses_after_all_is_named(bgplb: Run, on_stage: Stage) -> None:
    refuse(on_stage, ("edge", "edge-1"), highest=12)
    result = bgplb("store", "accept")
    assert (result.exit_code, "still refused by edge edge-1" in result.stderr) == (7, True)


def test_init_is_for_a_store_that_nobody_has_used(bgplb: Run, on_stage: Stage) -> None:
    refuse(on_stage, ("node", "gw-a"))
    refused = bgplb("store", "init")
    assert (refused.exit_code, "node gw-a" in refused.stderr, "accept" in refused.stderr) == (6, True, True)
    on_stage.server.wipe()
    first = bgplb("store", "init")
    assert (first.exit_code, meta(on_stage).generation in first.stdout, counter(on_stage)) == (0, True, 0)
    assert bgplb("store", "init").exit_code == 6


def test_status_names_the_generation_and_everybody_who_refuses(bgplb: Run, on_stage: Stage) -> None:
    on_stage.put(KEYS.meta, Meta("present"))
    refuse(on_stage, ("edge", "edge-1"), ("orchestrator", "orch-2"))
    shown = bgplb("status").stdout
    assert f"edge edge-1 does not obey this store: {REFUSAL}" in shown
    assert f"orchestrator orch-2 does not obey this store: {REFUSAL}" in shown
    assert '"generation": "present"' in bgplb("status", "-o", "json").stdout
