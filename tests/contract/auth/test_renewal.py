"""What is replaced in its file is used at the next connection or log-in, by a store and by a daemon that runs."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.clock import BootClock
from orchestrator.store.election import ROLE
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.keys import Keys
from orchestrator.store.opening import read_login
from orchestrator.store.port import StoreError
from tests.contract.auth.guarded import PEOPLE, Guarded, section_of
from tests.contract.auth.test_daemons import Orchestrators
from tests.contract.store.cluster import need_etcd

KEYS = Keys()
USER = "bgplb-orchestrator-orch-1"
COSTLY = 13
"""Each step up doubles the work; etcd's own choice is 10."""
LIMIT_S = 40.0
ATTEMPT_S = 0.2
"""What one try at a member may take here: less than such a hash takes on any machine."""


@pytest.fixture
async def store(unguarded: Guarded) -> AsyncIterator[EtcdStore]:
    """The store as orch-1 has it, with access control on."""
    unguarded.bootstrap(*PEOPLE, "--enable")
    made = unguarded.store(USER)
    yield made
    await made.close()


async def works(store: EtcdStore) -> bool:
    """Whether a write gets through."""
    with suppress(StoreError):
        await store.put(KEYS.leader, b"{}")
        return True
    return False


async def until_it_works(store: EtcdStore) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await works(store):
            await asyncio.sleep(0.2)


def new_password(guarded: Guarded) -> None:
    """Think of one, for etcd and for the file."""
    guarded.passwords[USER] = secrets.token_hex(16)


def make_it_useless(guarded: Guarded) -> None:
    """What USER logs in with is good no more, and nobody is connected as him: as after a night with etcd's restart."""
    if guarded.login == "certificate":
        guarded.distrust()
        guarded.cluster.kill(0)
        guarded.cluster.start(0)
    else:
        words = guarded.folder / "new"
        words.mkdir()
        (words / USER).write_text(guarded.passwords[USER] + "\n")
        (words / USER).chmod(0o600)
        arguments = ("--orchestrator", "orch-1", "--passwords", str(words))
        done = guarded.bgplb("etcd", "bootstrap-auth", *arguments, config=guarded.config("root", "root"))
        assert done.returncode == 0, done.stderr


def renew(guarded: Guarded) -> None:
    """Put the new one where the configuration says."""
    if guarded.login == "certificate":
        guarded.certify(USER)
    else:
        (guarded.folder / "passwords" / USER).write_text(guarded.passwords[USER] + "\n")


async def test_a_renewed_file_is_used_without_a_restart_once_it_can_be(unguarded: Guarded, store: EtcdStore) -> None:
    assert await works(store)
    new_password(unguarded)
    make_it_useless(unguarded)
    assert not await works(store), "or it was not useless"
    name = f"{USER}.key" if unguarded.login == "certificate" else f"passwords/{USER}"
    path = unguarded.folder / name
    renew(unguarded)
    path.chmod(0o640)
    await asyncio.sleep(1.1)
    with pytest.raises(StoreError, match=f"{name}: others may read"):
        await store.put(KEYS.leader, b"{}")
    path.chmod(0o600)
    await until_it_works(store)


async def test_a_store_that_takes_its_time_over_passwords_lets_us_in(tmp_path: Path) -> None:
    """A hash that takes longer than one try may. Many calls at once are one log-in, or none would ever end."""
    need_etcd()
    slow = Guarded(tmp_path, "password", more_flags=(f"--bcrypt-cost={COSTLY}",))
    slow.cluster.start_all()
    try:
        slow.bootstrap("--orchestrator", "orch-1", "--enable")
        login = read_login(section_of(slow.section(USER)))
        words = (login.tls, login.username, login.password)
        store = EtcdStore(slow.cluster.endpoints, BootClock(), *words, attempt_timeout_s=ATTEMPT_S)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(LIMIT_S):
            while not any(await asyncio.gather(*(works(store) for _ in range(8)))):
                pass
        took_s = asyncio.get_running_loop().time() - began
        await store.close()
        assert took_s > ATTEMPT_S, "or it was not slow"
    finally:
        slow.cluster.close()


async def test_a_daemon_lives_through_it(unguarded: Guarded, tmp_path: Path) -> None:
    """Its registration may end with its lease meanwhile; afterwards it is there again, of the same process."""
    unguarded.bootstrap(*PEOPLE, "--enable")
    folder = tmp_path / "daemons"
    folder.mkdir()
    running, root = Orchestrators(unguarded, folder), unguarded.store("root")

    async def last_beat() -> int:
        with suppress(StoreError):
            kv = await root.get(KEYS.heartbeat(ROLE, "orch-1"))
            return kv.mod_revision if kv is not None else 0
        return 0

    async def beats() -> None:
        first = await last_beat()
        async with asyncio.timeout(LIMIT_S):
            while (now := await last_beat()) == 0 or now == first:
                await asyncio.sleep(0.2)

    try:
        running.start("orch-1")
        await beats()
        new_password(unguarded)
        make_it_useless(unguarded)
        async with asyncio.timeout(LIMIT_S):
            said = {"certificate": "the store does not answer", "password": "check user and password"}
            while said[unguarded.login] not in (folder / "orch-1.log").read_text():
                await asyncio.sleep(0.2)
        renew(unguarded)
        if unguarded.login == "certificate":
            unguarded.certify("root")
        await beats()
        running.check()
    finally:
        running.close()
        await root.close()
