"""The stores that the contract suite runs against, and the servers behind them."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest

from orchestrator.clock import BootClock
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.port import Store
from tests.contract.store.cluster import EtcdCluster, running
from tests.contract.store.fake import FakeEtcd


@dataclass(frozen=True)
class Bench:
    """One store under test."""

    store: Store
    client: Callable[[], Store]
    """Another client of the same server."""
    compact: Callable[[int], None]
    prefix: str
    """A prefix that no other test uses."""


@pytest.fixture(scope="session")
def one_member() -> Iterator[EtcdCluster]:
    """A real etcd of one member, which no test may break."""
    with running(1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_members() -> Iterator[EtcdCluster]:
    """A real etcd of three members; who breaks one heals it, see `breakable`."""
    with running(3) as cluster:
        yield cluster


@pytest.fixture
def breakable(three_members: EtcdCluster) -> Iterator[EtcdCluster]:
    """The three members, whole at the start and healed afterwards."""
    try:
        yield three_members
    finally:
        three_members.heal()


@pytest.fixture
def prefix() -> str:
    """A prefix of its own for each test."""
    return f"/test-{uuid.uuid4()}/"


@pytest.fixture(params=["fake", "one member", "three members"])
async def bench(request: pytest.FixtureRequest, prefix: str) -> AsyncIterator[Bench]:
    """The same suite for the fake and for real etcd."""
    if request.param == "fake":
        server = FakeEtcd(BootClock())
        yield Bench(server.client(), server.client, server.compact, prefix)
        await server.close()
        return
    cluster: EtcdCluster = request.getfixturevalue("one_member" if request.param == "one member" else "three_members")
    stores: list[EtcdStore] = []

    def client() -> Store:
        stores.append(EtcdStore(cluster.endpoints, BootClock()))
        return stores[-1]

    yield Bench(client(), client, cluster.compact, prefix)
    for store in stores:
        await store.close()
