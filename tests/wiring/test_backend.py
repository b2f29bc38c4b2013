"""Which WireGuard an agent takes: what the configuration asks for, and the kernel's where it may choose."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dataplane.errors import Conflict, FeatureMissing
from dataplane.keys import ensure_private_key
from dataplane.netlink import Netlink
from dataplane.programs import path_of
from dataplane.wireguard_kernel import KernelWireGuard
from dataplane.wireguard_uapi import UserspaceWireGuard
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.wiring.act import wireguard_for

pytestmark = pytest.mark.root


@pytest.fixture
def namespace(run_id: str) -> Iterator[str]:
    name = f"bgplb-{run_id}-backend"
    subprocess.run([path_of("ip"), "netns", "add", name], check=True, timeout=20)
    yield name
    subprocess.run([path_of("ip"), "netns", "del", name], check=True, timeout=20)


@pytest.fixture
async def netlink(namespace: str) -> AsyncIterator[Netlink]:
    made = Netlink(namespace)
    yield made
    await made.close()


def kernel_has_it(namespace: str) -> bool:
    """Asked of iproute2, so that our own question is not its own witness."""
    device = ("-n", namespace, "link", "add", "witness", "type", "wireguard")
    return subprocess.run([path_of("ip"), *device], capture_output=True, timeout=20, check=False).returncode == 0


def config(backend: str, folder: Path) -> NodeAgentConfig:
    return NodeAgentConfig.model_validate(
        {
            "name": "gw-a",
            "etcd": {"endpoints": ["http://127.0.0.1:1"]},
            "state_dir": str(folder),
            "lan": {"address": "10.10.0.11"},
            "wireguard": {"backend": backend},
        }
    )


async def test_auto_takes_the_kernels_where_it_is(namespace: str, netlink: Netlink, tmp_path: Path) -> None:
    taken = await wireguard_for(config("auto", tmp_path), netlink)
    assert isinstance(taken, KernelWireGuard if kernel_has_it(namespace) else UserspaceWireGuard)
    links = {link.name for link in (await netlink.read([])).links}
    assert links <= {"lo", "witness"}, "nothing is left of the question"


async def test_auto_keeps_to_wireguard_go_while_its_tunnels_are_there(
    namespace: str, netlink: Netlink, tmp_path: Path
) -> None:
    key = tmp_path / "private.key"
    ensure_private_key(key)
    device = f"bgplb-b{os.getpid():x}"  # a control socket of wireguard-go is found by this name alone
    program = UserspaceWireGuard(netlink, namespace)
    await program.ensure_device(device, key, None, 1280, "bgplb:edge-1")
    try:
        assert isinstance(await wireguard_for(config("auto", tmp_path), netlink, namespace), UserspaceWireGuard)
        if kernel_has_it(namespace):
            kernel = await wireguard_for(config("kernel", tmp_path), netlink, namespace)
            with pytest.raises(Conflict, match=f"{device} was made by wireguard-go"):
                await kernel.ensure_device(device, key, None, 1280, "bgplb:edge-1")
            await kernel.close()
        assert (await program.read(device)).listen_port
    finally:
        await program.close()
        await netlink.delete_link(device)


async def test_userspace_is_taken_whatever_the_kernel_has(netlink: Netlink, tmp_path: Path) -> None:
    assert isinstance(await wireguard_for(config("userspace", tmp_path), netlink), UserspaceWireGuard)


async def test_kernel_is_taken_or_refused(namespace: str, netlink: Netlink, tmp_path: Path) -> None:
    with suppress(FeatureMissing):
        assert isinstance(await wireguard_for(config("kernel", tmp_path), netlink), KernelWireGuard)
        assert kernel_has_it(namespace)
        return
    assert not kernel_has_it(namespace)
