"""Wires between systemd machines: a provider in the middle, two NAT boxes, a LAN that the gateways share."""

import subprocess
import time
from pathlib import Path

from tests.trust.systemd_machine import SystemdMachine

CLIENT = "203.0.113.2"
"""Where clients are: at the provider, beyond the edge."""
MASQUERADE = """\
table ip nat {
  chain out {
    type nat hook postrouting priority 100;
    oifname "out" masquerade
  }
}
"""


class Holder:
    """A network namespace with nothing in it but its wires."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "900"])
        ours, end = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
        while Path(f"/proc/{self.process.pid}/comm").read_text().strip() != "sleep" or (
            Path(f"/proc/{self.process.pid}/ns/net").readlink() == ours
        ):
            assert time.monotonic() < end, "waited 10 s for a network namespace"
            time.sleep(0.01)
        self.pid = self.process.pid

    def run(self, *command: str, stdin: str = "") -> str:
        enter = ["nsenter", f"--target={self.pid}", "--net", "--", *command]
        done = subprocess.run(enter, capture_output=True, text=True, timeout=60, check=False, input=stdin)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)


class SmallInternet:
    """The provider reaches everybody; a gateway reaches the world through its NAT box only."""

    def __init__(self) -> None:
        self.provider = Holder("provider")
        self.nats = {gateway: Holder(f"nat of {gateway}") for gateway in ("gw-a", "gw-b")}
        for holder in (self.provider, *self.nats.values()):
            holder.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
            holder.run("ip", "link", "set", "lo", "up")
        for bridge in ("mgmt", "lan"):
            self.provider.run("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0")
            self.provider.run("ip", "link", "set", bridge, "up")
        self.provider.run("ip", "address", "add", "10.99.0.1/24", "dev", "mgmt")

    def close(self) -> None:
        for holder in (self.provider, *self.nats.values()):
            holder.close()

    def wire(self, one: Holder | SystemdMachine, end: str, other: Holder | SystemdMachine, far_end: str) -> None:
        """A cable with both ends up."""
        pair = ("peer", "name", far_end, "netns", str(other.pid))
        subprocess.run(
            ["nsenter", f"--target={one.pid}", "--net", "ip", "link", "add", end, "type", "veth", *pair], check=True
        )
        for machine, device in ((one, end), (other, far_end)):
            machine.run("ip", "link", "set", device, "up")

    def connect(self, machine: SystemdMachine) -> None:
        """Give a machine the interfaces that the page says it has."""
        name, kind = machine.name, machine.name.partition("-")[0]
        machine.run("ip", "link", "set", "lo", "up")
        if kind == "orch":
            self.wire(machine, "eth0", self.provider, name)
            self.provider.run("ip", "link", "set", name, "master", "mgmt")
            machine.run("ip", "address", "add", f"10.99.0.1{name[-1]}/24", "dev", "eth0")
            machine.run("ip", "route", "add", "default", "via", "10.99.0.1")
        elif kind == "edge":
            self.wire(machine, "eth0", self.provider, name)
            self.provider.run("ip", "address", "add", f"{CLIENT}/30", "dev", name)
            self.provider.run("ip", "route", "add", "192.0.2.0/24", "via", "203.0.113.1")
            machine.run("ip", "address", "add", "203.0.113.1/30", "dev", "eth0")
            machine.run("ip", "route", "add", "default", "via", CLIENT)
            machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        else:
            self._behind_nat(machine, 1 if name == "gw-a" else 2)

    def _behind_nat(self, gateway: SystemdMachine, number: int) -> None:
        nat = self.nats[gateway.name]
        self.wire(nat, "out", self.provider, f"nat{number}")
        self.provider.run("ip", "address", "add", f"100.64.{number}.1/24", "dev", f"nat{number}")
        nat.run("ip", "address", "add", f"100.64.{number}.2/24", "dev", "out")
        nat.run("ip", "route", "add", "default", "via", f"100.64.{number}.1")
        nat.run(
            "nft",
            "-f",
            "-",
            stdin='table ip n { chain c { type nat hook postrouting priority 100;\noifname "out" masquerade\n}\n}\n',
        )
        self.wire(gateway, "eth0", nat, "in")
        nat.run("ip", "address", "add", f"10.0.{number}.1/24", "dev", "in")
        gateway.run("ip", "address", "add", f"10.0.{number}.10/24", "dev", "eth0")
        gateway.run("ip", "route", "add", "default", "via", f"10.0.{number}.1")
        self.wire(gateway, "lan0", self.provider, f"lan{number}")
        self.provider.run("ip", "link", "set", f"lan{number}", "master", "lan")
        gateway.run("ip", "address", "add", f"10.10.0.1{number}/24", "dev", "lan0")
        gateway.run("ip", "address", "add", "192.0.2.10/32", "dev", "lo")
