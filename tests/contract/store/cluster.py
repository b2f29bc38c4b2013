"""A real etcd of one or more members on loopback, made for a test and removed with it; members can be broken."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from orchestrator.store.stubs import etcd_pb2 as pb
from orchestrator.store.stubs import etcd_pb2_grpc as rpc
from tests.freezing import freeze

_START_LIMIT_S = 40.0


def need_etcd() -> None:
    """Skip, by name, where there is no real etcd."""
    if shutil.which("etcd") is None:
        pytest.skip("needs etcd (package etcd-server)")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class EtcdCluster:
    """Members by index; election timers are short when there are several, so that tests of loss are quick."""

    def __init__(
        self,
        size: int,
        extra: tuple[str, ...] = (),
        scheme: str = "http",
        command: Sequence[str] = ("etcd",),
        host: str = "127.0.0.1",
    ) -> None:
        """`host`: the address that clients come to; `command` has to start etcd where that is its own."""
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"bgplb-etcd-{os.getpid()}-", dir=shm))
        ports = free_ports(2 * size)
        self.scheme = scheme
        self._command = tuple(command)
        self.client_urls = [f"{scheme}://{host}:{port}" for port in ports[:size]]
        self._peer_urls = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        self._extra = extra if size == 1 else ("--heartbeat-interval=50", "--election-timeout=500", *extra)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size

    @property
    def endpoints(self) -> list[str]:
        """Client URLs of all members."""
        return list(self.client_urls)

    def start(self, index: int) -> None:
        """Start one member on its data folder."""
        peers = ",".join(f"m{i}={url}" for i, url in enumerate(self._peer_urls))
        arguments = [
            *self._command,
            f"--name=m{index}",
            f"--data-dir={self.folder}/m{index}",
            f"--listen-client-urls={self.client_urls[index]}",
            f"--advertise-client-urls={self.client_urls[index]}",
            f"--listen-peer-urls={self._peer_urls[index]}",
            f"--initial-advertise-peer-urls={self._peer_urls[index]}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token={self.folder.name}",
            "--log-level=error",
            *self._extra,
        ]
        with (self.folder / f"m{index}.log").open("ab") as log:
            self._processes[index] = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def start_all(self) -> None:
        """Start all members and wait until each answers a linearizable read."""
        for index in range(len(self._processes)):
            self.start(index)
        if self.scheme == "http":
            for index in range(len(self._processes)):
                self.wait_ready(index)

    def wait_ready(self, index: int) -> None:
        """Wait until the member answers with a quorum behind it; raises RuntimeError with its log if it never does."""
        end = time.monotonic() + _START_LIMIT_S
        with grpc.insecure_channel(self.client_urls[index].removeprefix("http://")) as channel:
            stub = rpc.KVStub(channel)
            while True:
                try:
                    stub.Range(pb.RangeRequest(key=b"ready"), timeout=1, metadata=(("hasleader", "true"),))
                    return
                except grpc.RpcError as error:
                    if "user name is empty" in str(error):
                        return
                    if time.monotonic() > end:
                        log = (self.folder / f"m{index}.log").read_text()[-2000:]
                        raise RuntimeError(f"etcd member {index} is not ready: {error}\n{log}") from error
                    time.sleep(0.1)

    def leader(self) -> int:
        """Index of the member that leads."""
        for index, url in enumerate(self.client_urls):
            with grpc.insecure_channel(url.removeprefix("http://")) as channel:
                status = rpc.MaintenanceStub(channel).Status(pb.StatusRequest(), timeout=5)
            if status.leader == status.header.member_id:
                return index
        raise RuntimeError("no etcd member leads")

    def index_of(self, endpoint: str) -> int:
        """Index of the member with this host and port."""
        return [url.split("://")[1] for url in self.client_urls].index(endpoint)

    def compact(self, revision: int) -> None:
        """Drop history below that revision."""
        with grpc.insecure_channel(self.client_urls[0].removeprefix("http://")) as channel:
            rpc.KVStub(channel).Compact(pb.CompactionRequest(revision=revision), timeout=5)

    def etcdctl(self, *arguments: str) -> None:
        """Run etcdctl against the first member; skips the test if it is not there."""
        if shutil.which("etcdctl") is None:
            pytest.skip("needs etcdctl (package etcd-client)")
        command = ["etcdctl", f"--endpoints={self.client_urls[0]}", *arguments]
        result = subprocess.run(
            command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=20, check=False
        )
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr or result.stdout}")

    def freeze(self, index: int) -> None:
        """Stop the member's process; its connections stay open."""
        process = self._processes[index]
        assert process is not None
        freeze(process.pid)

    def thaw(self, index: int) -> None:
        """Let a frozen member go on."""
        self._signal(index, signal.SIGCONT)

    def kill(self, index: int) -> None:
        """SIGKILL one member."""
        process = self._processes[index]
        assert process is not None
        process.kill()
        process.wait(10)
        self._processes[index] = None

    def wipe(self, index: int) -> None:
        """Remove the data of a member that does not run."""
        assert self._processes[index] is None
        shutil.rmtree(self.folder / f"m{index}")

    def heal(self) -> None:
        """Bring every member back: thaw, start, wait."""
        for index, process in enumerate(self._processes):
            if process is None:
                self.start(index)
            else:
                self.thaw(index)
        for index in range(len(self._processes)):
            self.wait_ready(index)

    def close(self) -> None:
        """Kill all members and remove their data."""
        for index, process in enumerate(self._processes):
            if process is not None:
                self.kill(index)
        shutil.rmtree(self.folder)

    def _signal(self, index: int, number: signal.Signals) -> None:
        process = self._processes[index]
        assert process is not None
        process.send_signal(number)


@contextmanager
def running(size: int, extra: tuple[str, ...] = (), scheme: str = "http") -> Iterator[EtcdCluster]:
    """So many members for the time of the block; see `EtcdCluster`."""
    need_etcd()
    cluster = EtcdCluster(size, extra, scheme)
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.close()
