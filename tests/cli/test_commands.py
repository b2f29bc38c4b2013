"""The commands on a store with a leader: what they ask, print, and end with."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsm.records import HistoryEntry, PoolSpec
from orchestrator import view
from orchestrator.admin import AdminServer, Command, history_asked
from orchestrator.store.port import Unavailable
from tests.cli.conftest import Run
from tests.cli.stand_ins import KEYS, NOON_MS, POOL, Stage
from tests.config.texts import EDGE_GATEWAY, NODE_AGENT, ORCHESTRATOR
from tests.config.texts import POOL as POOL_TEXT

ACTIONS = [
    (["pool", "drain", POOL], "drain", POOL, None),
    (["pool", "drain", POOL, "--to", "gw-b"], "drain", POOL, "gw-b"),
    (["pool", "move", POOL, "--to", "gw-b"], "move", POOL, "gw-b"),
    (["pool", "hold", POOL], "hold", POOL, None),
    (["pool", "release", POOL], "release", POOL, None),
    (["gateway", "drain", "gw-a"], "gateway-drain", "gw-a", None),
    (["gateway", "undrain", "gw-a"], "gateway-undrain", "gw-a", None),
]


@pytest.mark.parametrize(("words", "verb", "subject", "target"), ACTIONS)
def test_an_action_asks_the_leader_and_prints_its_answer(
    bgplb: Run, on_stage: Stage, words: list[str], verb: str, subject: str, target: str | None
) -> None:
    on_stage.leader.answer = "pool moves"
    result = bgplb(*words, "--reason", "new disks")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "pool moves\n", "")
    [request] = on_stage.leader.asked
    assert (request.verb, request.subject, request.target) == (verb, subject, target)
    assert (request.reason, request.by, request.at_ms) == ("new disks", "operator", NOON_MS)


@pytest.mark.parametrize(("words", "verb", "subject", "target"), ACTIONS)
def test_every_action_wants_a_reason(
    bgplb: Run, on_stage: Stage, words: list[str], verb: str, subject: str, target: str | None
) -> None:
    result = bgplb(*words)
    assert result.exit_code == 2
    assert "--reason" in result.stderr
    assert bgplb(*words, "--reason", " ").exit_code == 3
    assert on_stage.leader.asked == []


def test_a_refusal_is_code_6_with_the_leaders_reason(bgplb: Run, on_stage: Stage) -> None:
    on_stage.leader.answer, on_stage.leader.accepted = "gw-b is not ready: session not up", False
    result = bgplb("pool", "drain", POOL, "--reason", "x")
    assert (result.exit_code, result.stdout) == (6, "")
    assert result.stderr == "bgplb: gw-b is not ready: session not up\n"


def test_nobody_leads_is_code_7_and_the_request_is_taken_back(bgplb: Run, on_stage: Stage) -> None:
    on_stage.leader.answer = None
    began = on_stage.clock.now()
    result = bgplb("pool", "drain", POOL, "--reason", "x")
    assert result.exit_code == 7
    assert "no leader answered within 10 s, and the request was taken back" in result.stderr
    assert 10 <= on_stage.clock.now() - began < 11
    assert not [key for key in on_stage.server.items if key.startswith(KEYS.requests_prefix)]


def test_an_answer_in_the_last_moment_counts(bgplb: Run, on_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    on_stage.leader.answer = None
    begin = on_stage.clock.now()
    get = on_stage.store.get

    async def late(key: str):  # type: ignore[no-untyped-def]
        found = await get(key)
        if found is not None and on_stage.clock.now() >= begin + 10 and b'"answer":""' in found.value:
            on_stage.put(key, found.value.replace(b'"answer":""', b'"answer":"just so"').replace(b"false", b"true"))
        return found

    monkeypatch.setattr(on_stage.store, "get", late)
    result = bgplb("pool", "hold", POOL, "--reason", "x")
    assert (result.exit_code, result.stdout) == (0, "just so\n")


@pytest.mark.parametrize("fate", ["applied", "not applied"])
def test_a_put_without_an_answer_is_read_back(bgplb: Run, on_stage: Stage, fate: str) -> None:
    on_stage.store.lose_answer = fate  # type: ignore[assignment]
    on_stage.leader.answer = None
    result = bgplb("pool", "hold", POOL, "--reason", "x")
    assert result.exit_code == (7 if fate == "applied" else 5)


UNKNOWN = [
    (["pool", "drain", "nope"], "bgplb: there is no pool 'nope'; there is external-ip-pool-1\n"),
    (["pool", "move", POOL, "--to", "gw-z"], "bgplb: there is no gateway 'gw-z'; there is gw-a, gw-b\n"),
    (["gateway", "drain", "edge-1"], "bgplb: there is no gateway 'edge-1'; there is gw-a, gw-b\n"),
]


@pytest.mark.parametrize(("words", "said"), UNKNOWN)
def test_an_unknown_name_is_code_4(bgplb: Run, on_stage: Stage, words: list[str], said: str) -> None:
    result = bgplb(*words, "--reason", "x")
    assert (result.exit_code, result.stderr) == (4, said)
    assert on_stage.leader.asked == []


@pytest.mark.parametrize("words", [["status"], ["fsm", "dump"], ["pool", "hold", POOL, "--reason", "x"]])
def test_etcd_down_is_code_5_and_names_the_members(bgplb: Run, on_stage: Stage, words: list[str]) -> None:
    on_stage.store.reachable = False
    result = bgplb(*words)
    assert result.exit_code == 5
    assert result.stderr == f"bgplb: {Unavailable('fake store: switched off')} (etcd: http://10.99.0.1:2379)\n"


def test_no_configuration_is_code_3_and_says_how_to_get_one(bgplb: Run, on_stage: Stage) -> None:
    (on_stage.folder / "cli.yaml").unlink()
    result = bgplb("status")
    assert result.exit_code == 3
    assert "bgplb config example cli" in result.stderr
    assert "--config" in result.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [("orchestrator.yaml", ORCHESTRATOR), ("node-agent.yaml", NODE_AGENT), ("edge-agent.yaml", ORCHESTRATOR)],
)
def test_any_daemons_file_tells_where_the_store_is(bgplb: Run, on_stage: Stage, name: str, text: str) -> None:
    (on_stage.folder / "cli.yaml").unlink()
    (on_stage.folder / name).write_text(text)
    assert bgplb("status").exit_code == 0
    (on_stage.folder / name).rename(on_stage.folder / "elsewhere.yaml")
    assert bgplb("status").exit_code == 3
    assert bgplb("status", "--config", str(on_stage.folder / "elsewhere.yaml")).exit_code == 0


def test_the_configuration_may_come_from_the_environment(
    bgplb: Run, on_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (on_stage.folder / "cli.yaml").rename(on_stage.folder / "mine.yaml")
    monkeypatch.setenv("BGPLB_CONFIG", str(on_stage.folder / "mine.yaml"))
    assert bgplb("status").exit_code == 0


def test_status_for_people_and_for_programs(bgplb: Run) -> None:
    shown = bgplb("status").stdout
    assert "leader orch-1; store revision" in shown
    assert " ago" in shown
    for word in (POOL, "ActiveHealthy", "gw-a", "gw-b", "edge-1", "AdvertisementPending"):
        assert word in shown
    assert "192.0.2.0/26" not in shown
    wide = bgplb("status", "-o", "wide").stdout
    assert "192.0.2.0/26" in wide
    assert "gw-b -> gw-a, about 151 ms +/- 50 ms without answered probes" in wide
    data = json.loads(bgplb("status", "-o", "json").stdout)
    assert data["schema"] == 1
    again = yaml.safe_load(bgplb("status", "-o", "yaml").stdout)
    assert set(again) == set(data)
    assert [gateway["ready"] for gateway in data["gateways"]] == [True, True]


def test_status_sees_who_is_silent_and_who_is_gone(bgplb: Run, on_stage: Stage) -> None:
    on_stage.store.beating = [key for key in on_stage.store.beating if not key.endswith("gw-b")]
    del on_stage.server.items[KEYS.heartbeat("edge", "edge-1")]
    on_stage.store.beating = [key for key in on_stage.store.beating if not key.endswith("edge-1")]
    data = json.loads(bgplb("status", "-o", "json").stdout)
    assert {gateway["name"]: gateway["agent"] for gateway in data["gateways"]} == {"gw-a": "fresh", "gw-b": "stale"}
    assert data["edges"][0]["agent"] == "expired"
    assert data["gateways"][0]["ready"] is False


def test_a_record_of_a_later_version_is_named_and_the_rest_is_shown(bgplb: Run, on_stage: Stage) -> None:
    on_stage.put(KEYS.machine("pool", "later"), b'{"schema":9}')
    data = json.loads(bgplb("fsm", "dump", "-o", "json").stdout)
    assert [machine["name"] for machine in data["machines"]] == [POOL]
    assert data["problems"] == [
        "/bgplb/v1/machines/pool/later: schema 9 is unknown here, this version reads schema 1; update bgplb"
    ]


def test_dump_in_every_format(bgplb: Run) -> None:
    shown = bgplb("fsm", "dump", "--history", "2").stdout
    for word in (POOL, "ActiveHealthy", "gw-b@8", "PeerUpdated", "detect 120.0 ms", " ago"):
        assert word in shown
    assert "edge-1 installed gw-a@7" in bgplb("fsm", "dump", "-o", "wide").stdout
    assert yaml.safe_load(bgplb("fsm", "dump", "-o", "yaml").stdout)["machines"][0]["owner"] == "gw-a"
    assert "class ActiveHealthy here" in bgplb("fsm", "dump", "-o", "mermaid").stdout
    assert bgplb("fsm", "dump", "-o", "dot").stdout.startswith("digraph pool {")
    assert bgplb("fsm", "dump", "-o", "xml").exit_code == 2


def test_dump_of_one_pool(bgplb: Run) -> None:
    assert json.loads(bgplb("fsm", "dump", POOL, "-o", "json").stdout)["machines"][0]["name"] == POOL
    result = bgplb("fsm", "dump", "nope")
    assert (result.exit_code, result.stderr) == (4, "bgplb: there is no pool 'nope'; 'bgplb fsm dump' lists all\n")


def test_history_has_the_revision_that_the_store_gave_it(bgplb: Run, on_stage: Stage) -> None:
    machine = json.loads(bgplb("fsm", "dump", "--history", "200", "-o", "json").stdout)["machines"][0]
    assert [entry["seq"] for entry in machine["history"]] == [1, 2, 3, 4]
    for entry in machine["history"]:
        kv = on_stage.server.items[KEYS.history("pool", POOL, entry["seq"])]
        assert entry["revision"] == kv.mod_revision
    assert HistoryEntry.__name__ not in json.dumps(machine)


def test_the_table_is_printed(bgplb: Run) -> None:
    assert "| `OwnerUnfit` |" in bgplb("fsm", "table").stdout


def test_a_socket_that_nobody_serves_is_code_5(bgplb: Run, tmp_path: Path) -> None:
    result = bgplb("status", "--socket", str(tmp_path / "none.sock"))
    assert result.exit_code == 5
    assert result.stderr.startswith(f"bgplb: {tmp_path}/none.sock: No such file or directory; is the daemon running")


def test_version(bgplb: Run) -> None:
    assert bgplb("version").stdout.startswith("bgplb 0.")
    assert json.loads(bgplb("version", "-o", "json").stdout)["schema"] == 1


def test_config_check_and_example(bgplb: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(bgplb("config", "example", "node-agent").stdout)
    assert bgplb("config", "check", "node-agent", str(good)).stdout == f"{good}: good\n"
    bad.write_text(NODE_AGENT + "foo: 1\nrun_dir: x\n")
    result = bgplb("config", "check", "node-agent", str(bad))
    assert result.exit_code == 3
    assert result.stderr.splitlines()[0] == f"bgplb: {bad}: run_dir: value 'x': an absolute path"
    assert len(result.stderr.splitlines()) == 2
    assert bgplb("config", "check", "node", str(good)).exit_code == 2


@pytest.mark.parametrize(
    "words", [["edge-agent"], ["node-agent"], ["edge-agent", "cleanup"], ["node-agent", "cleanup"]]
)
def test_an_agent_without_root_is_code_8(bgplb: Run, on_stage: Stage, words: list[str]) -> None:
    object.__setattr__(on_stage.environment, "is_root", lambda: False)
    result = bgplb(*words)
    assert result.exit_code == 8
    assert result.stderr.startswith(f"bgplb: {words[0]} needs root: ")
    assert bgplb(*words, "--help").exit_code == 0


@pytest.mark.parametrize("role", ["orchestrator", "edge-agent", "node-agent"])
def test_a_daemon_without_a_good_file_is_code_3(bgplb: Run, on_stage: Stage, role: str) -> None:
    result = bgplb(role)
    assert result.exit_code == 3
    assert f"'bgplb config example {role}' prints one to begin with" in result.stderr
    (on_stage.folder / f"{role}.yaml").write_text("name: A\n")
    result = bgplb(role)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"bgplb: {on_stage.folder}/{role}.yaml: name: value 'A': a DNS label")


@pytest.fixture
def intent(tmp_path: Path) -> Path:
    """A folder that says what the store on the stage has accepted."""
    folder = tmp_path / "intent"
    folder.mkdir()
    (folder / "gateway.yaml").write_text(EDGE_GATEWAY)
    pool = POOL_TEXT.replace("  autoAssign: false\n", "").split("  serviceAllocation")[0]
    (folder / "pool.yaml").write_text(pool + "  serviceAllocation: {priority: 10}\n")
    return folder


def test_manifests_check(bgplb: Run, intent: Path) -> None:
    assert bgplb("manifests", "check", str(intent)).stdout == f"{intent}: good: 1 EIPPool, 1 EdgeGateway\n"
    (intent / "pool.yaml").write_text(POOL_TEXT.replace("2.0/26", "2.1/26"))
    result = bgplb("manifests", "check", str(intent))
    assert result.exit_code == 3
    assert "host bits are set" in result.stderr
    assert bgplb("manifests", "check", str(intent / "absent")).exit_code == 3


def test_apply_of_what_is_in_force(bgplb: Run, intent: Path) -> None:
    result = bgplb("manifests", "apply", str(intent))
    assert (result.exit_code, result.stdout) == (0, "accepted\n")


def test_apply_waits_for_the_leader_and_names_what_it_did_not_take(bgplb: Run, intent: Path) -> None:
    (intent / "more.yaml").write_text(POOL_TEXT.replace("pool-1", "pool-2").replace(".0/26", ".64/26"))
    gateway = (intent / "gateway.yaml").read_text()
    (intent / "gateway.yaml").write_text(gateway + "  standbys: 2\n")
    result = bgplb("manifests", "apply", str(intent))
    assert result.exit_code == 7
    assert result.stdout == "+ EIPPool/external-ip-pool-2\n~ EdgeGateway/edge-gateway\n"
    assert (
        "not accepted within 10 s: EIPPool/external-ip-pool-2, EdgeGateway/edge-gateway; is a leader" in result.stderr
    )


def test_apply_refuses_to_forget_without_prune(bgplb: Run, on_stage: Stage, intent: Path) -> None:
    (intent / "pool.yaml").unlink()
    result = bgplb("manifests", "apply", str(intent))
    assert result.exit_code == 6
    assert result.stdout == f"- EIPPool/{POOL}\n"
    assert f"in force and not in {intent}: EIPPool/{POOL}; delete them with --prune" in result.stderr
    assert on_stage.leader.asked == []


def test_apply_with_prune_asks_the_leader_to_delete(
    bgplb: Run, on_stage: Stage, intent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (intent / "pool.yaml").unlink()
    txn = on_stage.store.txn

    async def deleting(guards, ops):  # type: ignore[no-untyped-def]
        result = await txn(guards, ops)
        gone = PoolSpec(POOL, "192.0.2.0/24", ("192.0.2.0/26",), "edge-gateway", priority=10, deleted=True)
        on_stage.put(KEYS.spec("EIPPool", POOL), gone)
        return result

    monkeypatch.setattr(on_stage.store, "txn", deleting)
    on_stage.leader.answer = f"deletes EIPPool/{POOL}"
    result = bgplb("manifests", "apply", str(intent), "--prune", "--reason", "returned")
    assert result.exit_code == 0
    assert result.stdout == f"- EIPPool/{POOL}\ndeletes EIPPool/{POOL}\naccepted\n"
    assert [(request.verb, request.reason) for request in on_stage.leader.asked] == [("prune", "returned")]


def test_a_replica_answers_by_its_socket_also_without_a_store(bgplb: Run, on_stage: Stage) -> None:
    """The daemon's side runs in a thread with a loop of its own, as it does in a process of its own."""
    path = on_stage.folder / "orch-2.sock"
    items = dict(on_stage.server.items)
    on_stage.store.reachable = False

    async def status(request: Mapping[str, Any]) -> object:
        return view.status(items, KEYS, {}, revision=9, age_ms=12_000)

    async def dump(request: Mapping[str, Any]) -> object:
        return view.dump(items, KEYS, revision=9, age_ms=-1, history=history_asked(request))

    with serving(path, {"status": status, "dump": dump}):
        assert "store revision 9, seen 12 s ago" in bgplb("status", "--socket", str(path)).stdout
        shown = bgplb("fsm", "dump", POOL, "--history", "1", "--socket", str(path)).stdout
        assert "store revision 9, seen an unknown time ago" in shown
        assert "PeerUpdated" in shown
        assert bgplb("fsm", "dump", "nope", "--socket", str(path)).exit_code == 4


@contextmanager
def serving(path: Path, commands: Mapping[str, Command]) -> Iterator[None]:
    """Serve an admin socket from another thread."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    server = AdminServer(path, commands)

    def run() -> None:
        loop.run_until_complete(server.start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(server.close())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
