"""`bgplb etcd bootstrap-auth` on a real etcd: what it makes, a second run, what it corrects and what it refuses."""

import stat

import pytest

from orchestrator.clock import BootClock
from orchestrator.store.auth import Access, Allow, GiveRole, Range, agent, below, operator
from orchestrator.store.etcd_auth import EtcdAuth
from orchestrator.store.keys import Keys
from orchestrator.store.opening import read_tls
from orchestrator.store.port import Refused
from tests.contract.auth.guarded import PEOPLE, USERS, Guarded, section_of

KEYS = Keys()


async def access_of(store: Guarded) -> EtcdAuth:
    section = section_of(store.section("root"))
    return await EtcdAuth.connect(
        section.endpoints, BootClock(), read_tls(section), section.username, store.passwords.get("root")
    )


def test_a_second_run_finds_nothing_to_do(unguarded: Guarded) -> None:
    first = unguarded.bootstrap(*PEOPLE, "--enable")
    for user in USERS:
        assert f"user {user}: made" in first
    assert "role bgplb-node-gw-a: may read and write /bgplb/v1/observed/node/gw-a/*" in first
    assert first.index("access control: on") > first.index("user root: has role root")
    assert all(password not in first for password in unguarded.passwords.values())
    assert unguarded.bootstrap(*PEOPLE, "--enable").splitlines() == ["all is as it should be already"]


def test_a_later_run_adds_one_and_leaves_the_others(unguarded: Guarded) -> None:
    unguarded.bootstrap("--edge", "edge-1", "--enable")
    second = unguarded.bootstrap("--edge", "edge-2")
    assert "user bgplb-edge-edge-2: made" in second
    assert "edge-1" not in second


async def test_what_somebody_widened_is_narrowed_again(unguarded: Guarded) -> None:
    unguarded.bootstrap()
    access = await access_of(unguarded)
    try:
        role, user = "bgplb-edge-edge-1", "bgplb-edge-edge-1"
        before = await access.read()
        assert before.roles[role] == agent(KEYS, "edge", "edge-1").permissions
        for change in (
            Allow(role, below(KEYS.machines_prefix), Access.BOTH),
            Allow(role, Range(KEYS.agent("edge", "edge-1"), "/bgplb/v1/z"), Access.WRITE),
            Allow(role, below(KEYS.desired_prefix("edge", "edge-1")), Access.BOTH),
            GiveRole(user, "bgplb-orchestrator"),
        ):
            await access.do(change, {})
        assert (await access.read()).roles[role] != before.roles[role]
        said = unguarded.bootstrap(*PEOPLE)
        assert f"role {role}: may no longer touch /bgplb/v1/machines/*" in said
        assert f"user {user}: has role bgplb-orchestrator no more" in said
        assert await access.read() == before
    finally:
        await access.close()


async def test_a_changed_password_is_set(unguarded: Guarded) -> None:
    if unguarded.login == "certificate":
        pytest.skip("needs a log-in by password")
    unguarded.bootstrap(*PEOPLE, "--enable")
    user = "bgplb-edge-edge-1"
    (unguarded.folder / "passwords" / user).write_text("another one\n")
    assert unguarded.bootstrap().splitlines()[0] == f"user {user}: password set"
    store = unguarded.store(user)
    await store.list(KEYS.desired_prefix("edge", "edge-1"))
    await store.close()
    (unguarded.folder / "passwords" / user).write_text("a wrong one\n")
    store = unguarded.store(user)
    with pytest.raises(Refused, match=f"log-in of '{user}'") as caught:
        await store.list(KEYS.desired_prefix("edge", "edge-1"))
    assert "a wrong one" not in str(caught.value)
    await store.close()


def test_bad_input_is_refused_before_anything_is_made(unguarded: Guarded) -> None:
    root = unguarded.config("root", "root")
    passwords = unguarded.folder / "passwords"
    for user in USERS:
        path = passwords / user
        path.write_text("some password\n")
        path.chmod(0o600)

    def fails(*arguments: str) -> str:
        done = unguarded.bgplb("etcd", "bootstrap-auth", *arguments, "--passwords", str(passwords), config=root)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "some password" not in done.stdout + done.stderr
        return done.stderr

    assert "--edge 'Edge_1'" in fails("--edge", "Edge_1")
    (passwords / "bgplb-edge-edge-1").chmod(0o640)
    assert "bgplb-edge-edge-1: cannot be used: others may read" in fails("--edge", "edge-1")
    (passwords / "bgplb-edge-edge-1").write_text("\n")
    (passwords / "bgplb-edge-edge-1").chmod(0o600)
    assert "is empty" in fails("--edge", "edge-1")
    (passwords / "bgplb-edge-edge-1").unlink()
    (passwords / "notes.txt").touch(mode=0o600)
    assert "notes.txt" in fails("--edge", "edge-1")
    assert stat.S_IMODE((passwords / "root").stat().st_mode) == 0o600


def test_roles_name_no_key_of_another() -> None:
    """By arithmetic, for names that begin alike: no range of one agent meets a key of the other."""

    def meets(key: str, range_: Range) -> bool:
        return range_.key <= key < range_.end if range_.end else key == range_.key

    mine = agent(KEYS, "edge", "edge-1").permissions
    for key in (
        KEYS.agent("edge", "edge-10"),
        KEYS.desired_base("edge", "edge-10"),
        KEYS.heartbeat("edge", "edge-1-b"),
    ):
        assert not any(meets(key, range_) for range_ in mine)
    assert any(meets(KEYS.desired("edge", "edge-1", "pool", "web"), range_) for range_ in mine)
    assert set(operator(KEYS, "a").permissions.values()) == {Access.READ, Access.WRITE}


async def test_only_an_old_etcd_keeps_passwords_in_clear_on_its_disk(shut: Guarded) -> None:
    """In its log, where they pass on their way to be hashed; what it keeps for good are hashes."""
    files = [(path.parent.name, path.read_bytes()) for path in shut.cluster.folder.rglob("*") if path.is_file()]
    assert {"snap", "wal"} <= {folder for folder, _ in files}
    found = {folder for folder, text in files if any(word.encode() in text for word in shut.passwords.values())}
    store = shut.store("root")
    version = (await store.status()).version
    await store.close()
    assert found == ({"wal"} if shut.passwords and version.startswith("3.4.") else set()), version
