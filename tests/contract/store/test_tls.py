"""The client over TLS: the server's name and authority are checked, our own certificate is shown."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from orchestrator.clock import BootClock
from orchestrator.store.etcd import EtcdStore, Tls
from orchestrator.store.port import Unavailable
from tests.contract.store.cluster import EtcdCluster, running


@dataclass(frozen=True)
class Secure:
    """A member that talks TLS and wants a certificate of its own authority."""

    cluster: EtcdCluster
    authority: trustme.CA


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "key.pem")
    for blob in server.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    flags = (
        f"--cert-file={folder}/cert.pem",
        f"--key-file={folder}/key.pem",
        f"--trusted-ca-file={folder}/ca.pem",
        "--client-cert-auth=true",
    )
    with running(1, flags, "https") as cluster:
        yield Secure(cluster, authority)


def identity(authority: trustme.CA, trusted: trustme.CA, server_name: str | None = None) -> Tls:
    """A certificate of one authority for a client that trusts another."""
    certificate = authority.issue_cert("client.example")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    return Tls(trusted.cert_pem.bytes(), chain, certificate.private_key_pem.bytes(), server_name)


async def reaches(secure: Secure, tls: Tls, prefix: str, call_timeout_s: float) -> bool:
    """Whether a write gets through."""
    store = EtcdStore(secure.cluster.endpoints, BootClock(), tls, call_timeout_s=call_timeout_s)
    try:
        await store.put(prefix + "a", b"")
    except Unavailable:
        return False
    finally:
        await store.close()
    return True


async def test_both_sides_know_each_other(secure: Secure, prefix: str) -> None:
    tls = identity(secure.authority, secure.authority)
    assert await reaches(secure, tls, prefix, call_timeout_s=30)  # the member may still be starting
    assert await reaches(secure, tls, prefix, call_timeout_s=2)


async def test_a_server_of_another_authority_is_not_trusted(secure: Secure, prefix: str) -> None:
    assert not await reaches(secure, identity(secure.authority, trustme.CA()), prefix, call_timeout_s=2)


async def test_a_server_by_another_name_is_not_trusted(secure: Secure, prefix: str) -> None:
    other = identity(secure.authority, secure.authority, server_name="other.example")
    assert not await reaches(secure, other, prefix, call_timeout_s=2)
    right = identity(secure.authority, secure.authority, server_name="localhost")
    assert await reaches(secure, right, prefix, call_timeout_s=30)
