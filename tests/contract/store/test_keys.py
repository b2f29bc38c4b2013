"""Every key is built and parsed here; a stranger is refused."""

import pytest

from orchestrator.store import keys as k
from orchestrator.store.key_text import key_text
from orchestrator.store.keys import Keys

KEYS = Keys()

CASES: list[tuple[str, str, k.Key]] = [
    (KEYS.meta, "meta", k.MetaKey()),
    (KEYS.leader, "leader", k.LeaderKey()),
    (KEYS.epoch_counter, "counter/epoch", k.EpochCounterKey()),
    (KEYS.agent("edge", "edge-1"), "agents/edge/edge-1", k.AgentKey("edge", "edge-1")),
    (KEYS.heartbeat("node", "gw-a"), "heartbeats/node/gw-a", k.HeartbeatKey("node", "gw-a")),
    (KEYS.spec("EIPPool", "p"), "spec/EIPPool/p", k.SpecKey("EIPPool", "p")),
    (KEYS.machine("pool", "p"), "machines/pool/p", k.MachineKey("pool", "p")),
    (KEYS.history("pool", "p", 42), "history/pool/p/0000000042", k.HistoryKey("pool", "p", 42)),
    (KEYS.desired_base("edge", "e"), "desired/edge/e/base", k.DesiredBaseKey("edge", "e")),
    (KEYS.desired("edge", "e", "pool", "base"), "desired/edge/e/pool/base", k.DesiredKey("edge", "e", "pool", "base")),
    (KEYS.observed_base("node", "n"), "observed/node/n/base", k.ObservedBaseKey("node", "n")),
    (KEYS.observed("node", "n", "pool", "p"), "observed/node/n/pool/p", k.ObservedKey("node", "n", "pool", "p")),
    (KEYS.request("7f"), "requests/7f", k.RequestKey("7f")),
]


@pytest.mark.parametrize(("key", "text", "parsed"), CASES, ids=[case[1] for case in CASES])
def test_a_key_is_built_and_parsed(key: str, text: str, parsed: k.Key) -> None:
    assert key == "/bgplb/v1/" + text
    assert KEYS.parse(key) == parsed


@pytest.mark.parametrize(
    "key",
    [
        "/bgplb/v2/meta",
        "/bgplb/v1/",
        "/bgplb/v1/unknown",
        "/bgplb/v1/agents/edge",
        "/bgplb/v1/agents/edge/",
        "/bgplb/v1/history/pool/p/42",
        "/bgplb/v1/history/pool/p/000000000x",
        "/bgplb/v1/desired/edge/e/pool",
        "/bgplb/v1/meta/more",
    ],
)
def test_a_stranger_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="key"):
        KEYS.parse(key)


@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_a_name_can_not_change_the_shape_of_a_key(name: str) -> None:
    with pytest.raises(ValueError, match="part of a store key"):
        KEYS.machine("pool", name)


@pytest.mark.parametrize("prefix", ["", "//", "bgplb/", "/bgplb", "/a//b/"])
def test_a_prefix_is_checked(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Keys(prefix)


def test_history_sorts_by_number() -> None:
    keys = [KEYS.history("pool", "p", seq) for seq in (0, 9, 10, 99, 100, 10**10 - 1)]
    assert keys == sorted(keys)
    with pytest.raises(ValueError, match="outside"):
        KEYS.history("pool", "p", 10**10)


def test_prefixes_hold_their_keys_only() -> None:
    assert KEYS.desired("edge", "e", "pool", "p").startswith(KEYS.desired_prefix("edge", "e"))
    assert not KEYS.desired("edge", "e2", "pool", "p").startswith(KEYS.desired_prefix("edge", "e"))
    assert KEYS.heartbeat("edge", "e").startswith(KEYS.heartbeats("edge"))
    assert KEYS.history("pool", "p", 1).startswith(KEYS.history_prefix("pool", "p"))


def test_a_key_that_is_no_text_is_shown_and_ends_nobody() -> None:
    assert key_text(b"/bgplb/v1/observed/edge/edge-1/\xff") == "/bgplb/v1/observed/edge/edge-1/\\xff"
    assert key_text(KEYS.leader.encode()) == KEYS.leader
