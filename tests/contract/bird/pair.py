"""Two real BIRDs, an edge and a gateway, in two namespaces joined by a veth pair.

Everything carries this process's id, and is removed by it. Nothing is made outside the namespaces.
"""

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Literal

from birdctl.commands import Network
from birdctl.render import Bfd, EdgeConfig, GatewayConfig, Session, edge_text, gateway_text
from tests.freezing import freeze

Side = Literal["edge", "gw", "other"]

PROBES: tuple[Network, ...] = (ip_network("10.78.0.1/32"), ip_network("fd78::1/128"))
POOL_4 = ip_network("192.0.2.0/26")
POOL_6 = ip_network("2001:db8:2::/64")
POOL_B = ip_network("192.0.2.64/26")
LOCAL_4 = ip_network("192.0.2.240/28")
LOCAL_6 = ip_network("2001:db8:9::/48")
EDGE_SESSION = "bgplb_bgp_gw_a"
GATEWAY_SESSION = "bgplb_bgp_edge_1"
START_S = 20.0

_numbers = itertools.count()


def missing() -> str | None:
    """What this machine lacks to run a pair, by name; None when nothing."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [program for program in ("bird", "ip") if shutil.which(program) is None]
    return f"needs {', '.join(lacking)}" if lacking else None


def gateway_config(interface: str, announce_file: Path, local_include: Path | None = None) -> GatewayConfig:
    """The gateway of these tests."""
    return GatewayConfig(
        router_id=IPv4Address("10.77.0.1"),
        asn=64513,
        sessions=(Session("edge-1", interface, ip_address("10.77.0.1"), ip_address("10.77.0.0"), 64512),),
        probe_prefixes=PROBES,
        announce_file=announce_file,
        bfd=Bfd(interval_ms=100),
        local_include=local_include,
    )


class Pair:
    """The two machines. `start` and `kill` act on one BIRD each."""

    def __init__(self) -> None:
        self.run = f"{os.getpid() % 1_000_000:x}{next(_numbers):x}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"bgplb-bird-{self.run}-"))
        self.folder.chmod(0o755)
        self._birds: dict[Side, subprocess.Popen[bytes]] = {}

    def netns(self, side: Side) -> str:
        """The namespace of a side; `other` is the operator's BIRD on the edge."""
        return f"bgplb-{self.run}-{'gw' if side == 'gw' else 'edge'}"

    def interface(self, side: Side) -> str:
        """The tunnel's name at this end."""
        return f"{'g' if side == 'gw' else 'e'}{self.run}"

    def config_file(self, side: Side) -> Path:
        return self.folder / side / "bird.conf"

    def socket_path(self, side: Side) -> Path:
        return self.folder / side / "bird.ctl"

    @property
    def announce_file(self) -> Path:
        return self.folder / "gw" / "announce.conf"

    @property
    def local_include(self) -> Path:
        return self.folder / "local.conf"

    def up(self) -> None:
        """Make namespaces and link, write both configurations."""
        edge, gateway = self.netns("edge"), self.netns("gw")
        for name in (edge, gateway):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        near, far = self.interface("edge"), self.interface("gw")
        _ip("link", "add", near, "netns", edge, "type", "veth", "peer", "name", far, "netns", gateway)
        for name, link, host in ((edge, near, 0), (gateway, far, 1)):
            _ip("-n", name, "address", "add", f"10.77.0.{host}/31", "dev", link)
            _ip("-n", name, "address", "add", f"fd77::{host}/127", "dev", link, "nodad")
            _ip("-n", name, "link", "set", link, "up")
        extra = self.folder / "extra.conf"
        extra.write_text(f"if net ~ [ {LOCAL_4} ] then accept;\nif net ~ [ {LOCAL_6} ] then accept;\n")
        self.local_include.write_text(
            f"protocol static local_floor {{ ipv4; route {LOCAL_4} blackhole; }}\n"
            f"protocol static local_floor6 {{ ipv6; route {LOCAL_6} blackhole; }}\n"
            "protocol static foreign { ipv4; route 192.0.2.224/28 blackhole; }\n"
        )
        for side in ("edge", "gw", "other"):
            (self.folder / side).mkdir()
        self.config_file("edge").write_text(edge_text(self.edge_config(extra)))
        self.config_file("gw").write_text(gateway_text(self.gateway_config()))

    def edge_config(self, extra: Path | None = None) -> EdgeConfig:
        session = Session(
            "gw-a",
            self.interface("edge"),
            ip_address("10.77.0.0"),
            ip_address("10.77.0.1"),
            64513,
            (*PROBES, POOL_4, POOL_6, POOL_B),
        )
        return EdgeConfig(
            router_id=IPv4Address("10.77.0.0"),
            asn=64512,
            sessions=(session,),
            bfd=Bfd(interval_ms=100),
            import_extra=extra,
        )

    def gateway_config(self) -> GatewayConfig:
        return gateway_config(self.interface("gw"), self.announce_file, self.local_include)

    def start(self, side: Side) -> None:
        """Start a BIRD as its service does, and wait until it takes commands."""
        path = self.socket_path(side)
        command = ["ip", "netns", "exec", self.netns(side), "bird", "-f", "-c", str(self.config_file(side))]
        with (self.folder / side / "log").open("ab") as log:
            bird = subprocess.Popen([*command, "-s", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._birds[side] = bird
        end = time.monotonic() + START_S
        while not _answers(path):
            if bird.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"BIRD {side} did not start: {(self.folder / side / 'log').read_text()}")
            time.sleep(0.02)

    def kill(self, side: Side) -> None:
        """SIGKILL, and reap."""
        bird = self._birds.pop(side)
        bird.kill()
        bird.wait(START_S)

    def freeze(self, side: Side) -> None:
        freeze(self._birds[side].pid)

    def thaw(self, side: Side) -> None:
        self._birds[side].send_signal(signal.SIGCONT)

    def ip(self, side: Side, *arguments: str) -> str:
        """What `ip` says in that namespace."""
        return _ip("-n", self.netns(side), *arguments)

    def down(self) -> None:
        """Remove all that `up` and `start` made."""
        for side in tuple(self._birds):
            self.kill(side)
        for name in (self.netns("edge"), self.netns("gw")):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=START_S)
        shutil.rmtree(self.folder)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True, timeout=START_S)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            return probe.recv(5) == b"0001 "
        except OSError:
            return False
