"""Sysctls: the old values are on disk before a change, and come back."""

from pathlib import Path

import pytest

from dataplane import sysctl
from dataplane.errors import KernelRefused
from dataplane.sysctl import IPV6_FORWARDING, Sysctls, SysctlStore, SysctlStoreError

FORWARD = "net.ipv4.ip_forward"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /proc/sys."""
    root = tmp_path / "sys"
    (root / "net/ipv4/conf/eth0.1").mkdir(parents=True)
    (root / "net/ipv4/ip_forward").write_text("0\n")
    (root / "net/ipv4/tcp_rmem").write_text("4096\t131072\t6291456\n")
    (root / "net/ipv4/conf/eth0.1/rp_filter").write_text("2\n")
    monkeypatch.setattr(sysctl, "_PROC_SYS", root)
    return root


@pytest.fixture
def store(tmp_path: Path) -> SysctlStore:
    return SysctlStore(tmp_path / "sysctls.json")


def test_values_are_read_in_one_spelling_and_absent_ones_left_out(tree: Path) -> None:
    found = Sysctls().read([FORWARD, "net.ipv4.tcp_rmem", "net.ipv4.conf.eth0/1.rp_filter", "net.none"])
    assert found == {FORWARD: "0", "net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.conf.eth0/1.rp_filter": "2"}


def test_the_first_old_value_comes_back(tree: Path, store: SysctlStore) -> None:
    sysctls = Sysctls(store=store)
    assert sysctls.write(FORWARD, "1")
    assert sysctls.write(FORWARD, "2")
    assert not sysctls.write(FORWARD, "2")
    restarted = Sysctls(store=store)
    assert restarted.restore() == {FORWARD: "0"}
    assert Sysctls().read([FORWARD]) == {FORWARD: "0"}
    assert restarted.restore() == {}


def test_the_old_value_is_on_disk_before_the_change(tree: Path, store: SysctlStore) -> None:
    (tree / "net/ipv4/ip_forward").unlink()
    (tree / "net/ipv4/ip_forward").symlink_to("/proc/self/statm")  # readable, but not to be written
    with pytest.raises(KernelRefused, match=FORWARD):
        Sysctls(store=store).write(FORWARD, "1")
    assert FORWARD in store.values()


def test_a_parameter_whose_interface_is_gone_is_forgotten(tree: Path, store: SysctlStore) -> None:
    sysctls = Sysctls(store=store)
    sysctls.write("net.ipv4.conf.eth0/1.rp_filter", "0")
    (tree / "net/ipv4/conf/eth0.1/rp_filter").unlink()
    assert sysctls.restore() == {}
    assert store.values() == {}


@pytest.fixture
def ipv6(tree: Path) -> Path:
    """Interfaces that listen to router advertisements, one that does not, and one that does in any case."""
    conf = tree / "net/ipv6/conf"
    for device, value in {"all": "1", "default": "1", "eth0": "1", "eth0.1": "1", "quiet": "0", "always": "2"}.items():
        (conf / device).mkdir(parents=True)
        (conf / device / "accept_ra").write_text(f"{value}\n")
    (conf / "all/forwarding").write_text("0\n")
    return conf


def listening(conf: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text().strip() for path in conf.glob("*/accept_ra")}


def test_forwarding_ipv6_keeps_listening_to_router_advertisements(ipv6: Path, store: SysctlStore) -> None:
    before = listening(ipv6)
    sysctls = Sysctls(store=store)
    assert sysctls.write(IPV6_FORWARDING, "1")
    assert listening(ipv6) == {**before, "eth0": "2", "eth0.1": "2"}
    Sysctls(store=store).restore()
    assert listening(ipv6) == before
    assert Sysctls().read([IPV6_FORWARDING]) == {IPV6_FORWARDING: "0"}


def test_listening_is_made_sure_of_before_forwarding(ipv6: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round the kernel drops the default route that it learnt."""
    written: list[str] = []
    monkeypatch.setattr(Sysctls, "_write", lambda _self, name, _value: written.append(name))
    Sysctls().write(IPV6_FORWARDING, "1")
    assert written == ["net.ipv6.conf.eth0.accept_ra", "net.ipv6.conf.eth0/1.accept_ra", IPV6_FORWARDING]


def test_a_machine_that_forwards_ipv6_already_listens_as_it_did(ipv6: Path, store: SysctlStore) -> None:
    (ipv6 / "all/forwarding").write_text("1\n")
    before = listening(ipv6)
    assert not Sysctls(store=store).write(IPV6_FORWARDING, "1")
    assert (listening(ipv6), store.values()) == (before, {})


def test_a_damaged_store_is_named_and_kept(tree: Path, store: SysctlStore, tmp_path: Path) -> None:
    (tmp_path / "sysctls.json").write_text("{")
    with pytest.raises(SysctlStoreError, match=r"sysctls\.json"):
        Sysctls(store=store).write(FORWARD, "1")
    assert Sysctls().read([FORWARD]) == {FORWARD: "0"}


@pytest.mark.parametrize("name", ["", "net..ipv4", "net.ipv4./../x", "net.//."])
def test_a_name_that_leaves_the_tree_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a sysctl"):
        sysctl.path_of(name)
