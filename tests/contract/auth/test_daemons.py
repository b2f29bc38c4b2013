"""Real orchestrators, and the links of an edge's and a gateway's agent, at a store where each has its own user."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from bgplb_lab import configs

from dataplane.keys import parking_key
from fsm.records import AgentRecord, EdgeReport, NodeReport
from orchestrator.agents.edge import EdgeAgent
from orchestrator.agents.link import AgentLink
from orchestrator.clock import BootClock
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.sections import Agent
from orchestrator.store.election import ROLE
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.keys import Keys
from orchestrator.store.port import Change
from orchestrator.wiring import act
from tests.contract.auth.guarded import BGPLB, PEOPLE, REPOSITORY, Guarded

KEYS = Keys()
LIMIT_S = 30.0


class PaperAgent:
    """What a link asks of an agent, and no more."""

    def __init__(self) -> None:
        self.told: list[Change] = []
        self.link: AgentLink | None = None
        self._turns = 0

    @property
    def turns(self) -> int:
        """An agent that always works."""
        self._turns += 1
        return self._turns

    def on_desired(self, changes: tuple[Change, ...]) -> None:
        self.told += changes


class Orchestrators:
    """Started by the command, each as its own user."""

    def __init__(self, store: Guarded, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        manifests = folder / "manifests"
        manifests.mkdir()
        for name, text in configs.manifests().items():
            (manifests / name).write_text(text)

    def start(self, name: str) -> None:
        config = self.store.config(
            f"bgplb-orchestrator-{name}",
            name,
            name=name,
            manifests=str(self.folder / "manifests"),
            state_dir=str(self.folder / f"state-{name}"),
            run_dir=str(self.folder / "run"),
            http={"listen": None},
        )
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*BGPLB, "orchestrator", "--config", str(config)],
                cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        process_ = self.running.pop(name)
        process_.kill()
        process_.wait(10)

    def check(self) -> None:
        """None has ended by itself."""
        for name, running in self.running.items():
            assert running.poll() is None, (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)


@pytest.fixture
def orchestrators(shut: Guarded, tmp_path: Path) -> Iterator[Orchestrators]:
    made = Orchestrators(shut, tmp_path)
    yield made
    made.close()


@pytest.fixture
async def root(shut: Guarded) -> AsyncIterator[EtcdStore]:
    """The store as root has it, empty at the end."""
    store = shut.store("root")
    yield store
    for kv in (await store.list(KEYS.prefix)).items:
        await store.delete(kv.key)
    await store.close()


async def until(condition: Callable[[], Any], orchestrators: Orchestrators, *tasks: asyncio.Task[None]) -> None:
    """Wait for it; raises what ended a link, and fails when an orchestrator ended."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            orchestrators.check()
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)


def linked(shut: Guarded, role: str, name: str, folder: Path) -> tuple[PaperAgent, asyncio.Task[None], EtcdStore]:
    """A link as the agent's own wiring makes it."""
    section, state_dir = shut.section(f"bgplb-{role}-{name}"), folder / f"state-{role}"
    state_dir.mkdir()
    fields: dict[str, object] = {"name": name, "etcd": section, "state_dir": str(state_dir)}
    config: Agent = (
        EdgeAgentConfig.model_validate(fields)
        if role == "edge"
        else NodeAgentConfig.model_validate({**fields, "lan": {"address": "10.10.0.11"}})
    )
    agent, store = PaperAgent(), shut.store(f"bgplb-{role}-{name}")
    record = AgentRecord(name, role, f"i-{name}", "1", parking_key())
    link = act.link(config, store, BootClock(), lambda: record, cast(EdgeAgent, agent))
    report: object = EdgeReport("i") if role == "edge" else NodeReport("i", False)
    link.reports.set(KEYS.observed_base(role, name), report)
    return agent, asyncio.create_task(link.run()), store


async def test_the_daemons_work_under_their_roles(shut: Guarded, root: EtcdStore, orchestrators: Orchestrators) -> None:
    orchestrators.start("orch-1")
    edge, edge_task, edge_store = linked(shut, "edge", "edge-1", orchestrators.folder)
    node, node_task, node_store = linked(shut, "node", "gw-a", orchestrators.folder)
    tasks = (edge_task, node_task)
    try:

        async def told() -> bool:
            return bool(edge.told and node.told)

        await until(told, orchestrators, *tasks)
        assert edge.told[0].key == KEYS.desired_base("edge", "edge-1")
        for role, name in (("edge", "edge-1"), ("node", "gw-a")):
            for key in (KEYS.agent(role, name), KEYS.heartbeat(role, name), KEYS.observed_base(role, name)):
                assert await root.get(key) is not None, key

        orchestrators.start("orch-2")

        async def follows() -> bool:
            return await root.get(KEYS.heartbeat(ROLE, "orch-2")) is not None

        await until(follows, orchestrators, *tasks)
        await asyncio.sleep(1.5)  # some heartbeats of the follower, so that it may judge
        orchestrators.kill("orch-1")

        async def led_by_the_other() -> bool:
            kv = await root.get(KEYS.leader)
            return kv is not None and json.loads(kv.value)["name"] == "orch-2"

        await until(led_by_the_other, orchestrators, *tasks)

        async def lease_of_the_dead_ended() -> bool:
            return await root.get(KEYS.agent(ROLE, "orch-1")) is None

        await until(lease_of_the_dead_ended, orchestrators, *tasks)
        answer = shut.bgplb("status", "-o", "json", config=shut.config("bgplb-operator-alice", "cli"))
        assert json.loads(answer.stdout)["leader"]["name"] == "orch-2", answer.stderr
        answer = shut.bgplb(
            "gateway", "drain", "gw-a", "--reason", "a test", config=shut.config("bgplb-operator-alice", "cli")
        )
        assert answer.returncode in (0, 6), answer.stderr  # the leader's answer, whatever it says of the state
        orchestrators.check()
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await edge_store.close()
        await node_store.close()


async def test_access_control_is_turned_on_under_a_running_daemon(unguarded: Guarded, tmp_path: Path) -> None:
    """Its configuration has the log-in already; while the store wants none, none is made."""
    folder = tmp_path / "daemons"
    folder.mkdir()
    running = Orchestrators(unguarded, folder)
    store = unguarded.store("root")
    try:
        running.start("orch-1")

        async def beats() -> bool:
            return await store.get(KEYS.heartbeat(ROLE, "orch-1")) is not None

        await until(beats, running)
        unguarded.bootstrap(*PEOPLE, "--enable")
        before = await store.get(KEYS.heartbeat(ROLE, "orch-1"))
        assert before is not None

        async def beats_on() -> bool:
            kv = await store.get(KEYS.heartbeat(ROLE, "orch-1"))
            return kv is not None and kv.mod_revision > before.mod_revision + 3

        await until(beats_on, running)
        first = running.running["orch-1"]
        first.send_signal(signal.SIGTERM)
        assert first.wait(10) == 0, (folder / "orch-1.log").read_text()
    finally:
        running.close()
        await store.close()


async def test_a_daemon_with_the_wrong_password_says_so(shut: Guarded, orchestrators: Orchestrators) -> None:
    if shut.login == "certificate":
        pytest.skip("needs a log-in by password")
    wrong = shut.folder / "wrong-password"
    wrong.write_text("not the password\n")
    wrong.chmod(0o600)
    path = orchestrators.folder / "wrong.yaml"
    section = {**shut.section("bgplb-orchestrator-orch-1"), "password_file": str(wrong)}
    state = str(orchestrators.folder / "state")
    path.write_text(
        yaml.safe_dump(
            {"name": "orch-1", "etcd": section, "state_dir": state, "run_dir": state, "http": {"listen": None}}
        )
    )
    done = shut.bgplb("orchestrator", config=path)
    assert done.returncode == 5, done.stderr
    assert "log-in of 'bgplb-orchestrator-orch-1'" in done.stderr
    assert "not the password" not in done.stderr + done.stdout
