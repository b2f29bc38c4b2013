"""From the section `etcd` of a configuration to an open store."""

from fsm.ports import Clock
from orchestrator.config.sections import Etcd
from orchestrator.store.etcd import EtcdStore, Tls
from orchestrator.store.secret_files import read_password, read_secret


def read_tls(etcd: Etcd) -> Tls | None:
    """What the section says of certificates; None for plain http. Raises OSError, with its file name."""
    if not etcd.endpoints[0].startswith("https:"):
        return None
    return Tls(
        etcd.ca.read_bytes() if etcd.ca is not None else b"",
        etcd.cert.read_bytes() if etcd.cert is not None else None,
        read_secret(etcd.key) if etcd.key is not None else None,
    )


def open_store(etcd: Etcd, clock: Clock) -> EtcdStore:
    """The store that the section names. Call it in a running loop.

    Raises OSError, with its file name, when a certificate, key or password can't be read, or when others may read a
    key or password too.
    """
    password = read_password(etcd.password_file) if etcd.password_file is not None else None
    return EtcdStore(etcd.endpoints, clock, read_tls(etcd), etcd.username, password)
