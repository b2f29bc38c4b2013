"""Configuration text: compared whole with golden files, and read by BIRD itself.

After a wanted change run with BGPLB_REWRITE_GOLDEN=1 and commit only what you can explain.
"""

import os
import shutil
import subprocess
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from birdctl.render import (
    Announcements,
    Bfd,
    EdgeConfig,
    GatewayConfig,
    PoolAnnouncement,
    Session,
    announcements_text,
    edge_text,
    gateway_text,
)

GOLDEN = Path(__file__).parent / "golden"
POOL = PoolAnnouncement("web-1", (ip_network("192.0.2.0/26"), ip_network("2001:db8:2::/64")), announced=True)
IDLE = PoolAnnouncement("mail.example", (ip_network("192.0.2.128/26"), ip_network("192.0.2.64/26")), announced=False)


def edge(folder: Path, *, versions: tuple[int, ...] = (4, 6), hooks: bool = True) -> EdgeConfig:
    prefixes = [ip_network(text) for text in ("10.78.0.1/32", "fd78::1/128", "192.0.2.0/26", "2001:db8:2::/64")]
    accept = tuple(prefix for prefix in prefixes if prefix.version in versions)
    return EdgeConfig(
        router_id=IPv4Address("203.0.113.1"),
        asn=64512,
        sessions=(
            Session("gw-a", "bgplb-g0", ip_address("10.77.0.0"), ip_address("10.77.0.1"), 64513, accept),
            Session("gw-b", "bgplb-g1", ip_address("10.77.1.0"), ip_address("10.77.1.1"), 64513, accept[:1]),
        ),
        import_extra=folder / "import_extra.conf" if hooks else None,
        local_include=folder / "local.conf" if hooks else None,
    )


def gateway(folder: Path, *, versions: tuple[int, ...] = (4, 6), hooks: bool = True) -> GatewayConfig:
    probes = tuple(p for p in (ip_network("10.78.0.1/32"), ip_network("fd78::1/128")) if p.version in versions)
    return GatewayConfig(
        router_id=IPv4Address("10.77.0.1"),
        asn=64513,
        sessions=(Session("edge-1", "bgplb-e0", ip_address("10.77.0.1"), ip_address("10.77.0.0"), 64512),),
        probe_prefixes=probes,
        announce_file=folder / "announce.conf",
        local_include=folder / "local.conf" if hooks else None,
        bfd=Bfd(interval_ms=10, multiplier=3, idle_interval_ms=500),
        hold_time_s=30,
    )


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    """A folder with the operator's files."""
    (tmp_path / "import_extra.conf").write_text("if net = 192.0.2.240/28 then accept;\n")
    (tmp_path / "local.conf").write_text("protocol static local_floor { ipv4; route 192.0.2.240/28 blackhole; }\n")
    return tmp_path


def bird_reads(path: Path) -> None:
    """`bird -p`: parse only. Skips by name where there is no BIRD."""
    if shutil.which("bird") is None:
        pytest.skip("needs bird")
    done = subprocess.run(
        ["bird", "-p", "-c", str(path)], cwd=path.parent, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["edge", "gateway", "announce"])
def test_golden(name: str) -> None:
    folder = Path("/run/bgplb/bird")
    text = {
        "edge": edge_text(edge(folder)),
        "gateway": gateway_text(gateway(folder)),
        "announce": announcements_text(Announcements((POOL, IDLE))),
    }[name]
    golden = GOLDEN / f"{name}.conf"
    if os.environ.get("BGPLB_REWRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
@pytest.mark.parametrize("with_hooks", [True, False])
def test_bird_reads_what_is_rendered(hooks: Path, versions: tuple[int, ...], with_hooks: bool) -> None:
    path = hooks / "bird.conf"
    path.write_text(edge_text(edge(hooks, versions=versions, hooks=with_hooks)))
    bird_reads(path)
    path.write_text(gateway_text(gateway(hooks, versions=versions, hooks=with_hooks)))
    bird_reads(path)
    (hooks / "announce.conf").write_text(announcements_text(Announcements((POOL, IDLE))))
    bird_reads(path)


def test_bird_reads_an_edge_without_sessions(tmp_path: Path) -> None:
    path = tmp_path / "bird.conf"
    path.write_text(edge_text(EdgeConfig(IPv4Address("203.0.113.1"), 64512, sessions=())))
    bird_reads(path)


def test_bird_reads_a_session_over_ipv6(tmp_path: Path) -> None:
    accept = (ip_network("10.78.0.1/32"), *POOL.prefixes)
    session = Session("gw-a", "bgplb-g0", ip_address("fd77::"), ip_address("fd77::1"), 64513, accept)
    path = tmp_path / "bird.conf"
    path.write_text(edge_text(EdgeConfig(IPv4Address("203.0.113.1"), 64512, sessions=(session,))))
    bird_reads(path)


_dns = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pools=st.sets(_dns, min_size=1, max_size=60))
def test_bird_reads_any_pool_name(tmp_path: Path, pools: set[str]) -> None:
    path = tmp_path / "bird.conf"
    wanted = tuple(
        PoolAnnouncement(pool, (ip_network(f"10.0.{index}.0/24"), ip_network(f"fd00:{index:x}::/64")), bool(index % 2))
        for index, pool in enumerate(sorted(pools))
    )
    path.write_text("router id 10.77.0.1;\n" + announcements_text(Announcements(wanted)))
    bird_reads(path)


def test_every_protocol_is_named_and_ours() -> None:
    texts = (
        edge_text(edge(Path("/run"))),
        gateway_text(gateway(Path("/run"))),
        announcements_text(Announcements((POOL, IDLE))),
    )
    lines = [line.split() for text in texts for line in text.splitlines() if line.startswith("protocol ")]
    assert len(lines) == 14
    assert all(words[2].startswith("bgplb_") and words[3] == "{" for words in lines)


def test_no_session_believes_in_a_dead_neighbour() -> None:
    """With graceful restart the routes of a neighbour that died are kept for a while."""
    for text in (edge_text(edge(Path("/run"))), gateway_text(gateway(Path("/run")))):
        sessions = [block for block in text.split("\n\n") if block.startswith("protocol bgp ")]
        assert sessions
        for session in sessions:
            assert "\n\tgraceful restart off;" in session
            assert "\tlong lived graceful restart off;" in session


def test_each_session_accepts_its_own_prefixes_only() -> None:
    text = edge_text(edge(Path("/run"), hooks=False))
    filters = {block.split()[1]: block for block in text.split("\n\n") if block.startswith("filter")}
    assert sorted(filters) == ["bgplb_in6_gw_a", "bgplb_in_gw_a", "bgplb_in_gw_b"]
    assert "192.0.2.0/26" in filters["bgplb_in_gw_a"]
    assert "192.0.2.0/26" not in filters["bgplb_in_gw_b"]
    assert "+" not in text  # exact prefixes, no longer ones


def test_a_gateway_of_several_edges_has_a_session_with_each_of_its_own_number() -> None:
    first = gateway(Path("/run"))
    second = Session("edge-2", "bgplb-e1", ip_address("10.77.0.3"), ip_address("10.77.0.2"), 64514)
    text = gateway_text(replace(first, sessions=(*first.sessions, second)))
    assert 'interface "bgplb-e0", "bgplb-e1" {' in text, "BFD on both"
    ends = [line.split()[1:] for line in text.splitlines() if line.startswith("\tneighbor ")]
    assert ends == [["10.77.0.0", "port", "1179", "as", "64512;"], ["10.77.0.2", "port", "1179", "as", "64514;"]]


def test_the_gateway_touches_no_kernel_table() -> None:
    assert "protocol kernel" not in gateway_text(gateway(Path("/run")))


def _session(**changes: object) -> Session:
    values: dict[str, object] = {
        "name": "gw-a",
        "interface": "bgplb-g0",
        "local": ip_address("10.77.0.0"),
        "neighbor": ip_address("10.77.0.1"),
        "far_asn": 64513,
    }
    return Session(**{**values, **changes})  # type: ignore[arg-type]


def _edge_with(**changes: object) -> str:
    values: dict[str, object] = {
        "router_id": IPv4Address("203.0.113.1"),
        "asn": 64512,
        "sessions": (_session(accept=POOL.prefixes),),
    }
    return edge_text(EdgeConfig(**{**values, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"asn": 0}, "asn"),
        ({"sessions": (_session(far_asn=2**32),)}, "neighbour's asn"),
        ({"bgp_port": 0}, "bgp_port"),
        ({"hold_time_s": 2}, "hold_time_s"),
        ({"signal_table": 254}, "signal_table"),
        ({"import_extra": Path("relative.conf")}, "absolute"),
        ({"local_include": Path('/etc/"; include "/etc/shadow')}, "quotes"),
        ({"local_include": Path("/etc/*.conf")}, "wildcards"),
        ({"sessions": (_session(), _session())}, "same name"),
        ({"sessions": (_session(interface='x"; disabled'),)}, "interface"),
    ],
)
def test_bad_values_are_refused(changes: dict[str, object], says: str) -> None:
    _edge_with()
    with pytest.raises(ValueError, match=says):
        _edge_with(**changes)


def test_bad_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="interval_ms"):
        Bfd(interval_ms=5)
    with pytest.raises(ValueError, match="multiplier"):
        Bfd(multiplier=1)
    with pytest.raises(ValueError, match="IP versions"):
        _session(neighbor=ip_address("fd77::1"))
    with pytest.raises(ValueError, match="no prefix"):
        PoolAnnouncement("web", (), announced=False)
    with pytest.raises(ValueError, match="pools web-1 and web-1"):
        Announcements((POOL, POOL))
