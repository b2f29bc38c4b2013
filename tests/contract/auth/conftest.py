"""The guarded stores that the suite runs against: two versions of etcd, two ways to log in."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from orchestrator.store.etcd import EtcdStore
from tests.contract.auth.guarded import PEOPLE, Guarded, Login
from tests.contract.auth.newer_etcd import VERSION, newer_etcd
from tests.contract.store.cluster import need_etcd

WAYS = [(version, login) for version in ("packaged", VERSION) for login in ("password", "certificate")]
Client = Callable[[str], EtcdStore]


def guarded(folder: Path, version: str, login: Login) -> Iterator[Guarded]:
    """A store with users and roles, and access control still off."""
    if version == "packaged":
        need_etcd()
    made = Guarded(folder, login, "etcd" if version == "packaged" else newer_etcd())
    try:
        made.cluster.start_all()
        yield made
    finally:
        made.cluster.close()


@pytest.fixture(scope="session", params=WAYS, ids=lambda way: f"etcd {way[0]}, {way[1]}")
def shut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Access control is on; tests write below names of their own and leave users and roles as they are."""
    version, login = request.param
    for made in guarded(tmp_path_factory.mktemp("guarded"), version, cast(Login, login)):
        made.bootstrap(*PEOPLE, "--enable")
        yield made


@pytest.fixture(params=WAYS[:2], ids=lambda way: way[1])
def unguarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    """A store of one test's own, without users."""
    version, login = request.param
    yield from guarded(tmp_path, version, cast(Login, login))


@pytest.fixture
async def client(shut: Guarded) -> AsyncIterator[Client]:
    """Stores by user, closed at the end."""
    stores: list[EtcdStore] = []

    def make(user: str) -> EtcdStore:
        stores.append(shut.store(user))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()
