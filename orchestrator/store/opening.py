"""From the section `etcd` of a configuration to an open store."""

from fsm.ports import Clock
from orchestrator.config.sections import Etcd
from orchestrator.store.etcd import EtcdStore, Tls


def open_store(etcd: Etcd, clock: Clock) -> EtcdStore:
    """The store that the section names. Call it in a running loop.

    Raises OSError, with its file name, when a certificate, key or password can't be read.
    """
    cert = etcd.cert.read_bytes() if etcd.cert is not None else None
    key = etcd.key.read_bytes() if etcd.key is not None else None
    ca = etcd.ca.read_bytes() if etcd.ca is not None else b""
    lines = etcd.password_file.read_text("utf-8").splitlines() if etcd.password_file is not None else []
    tls = Tls(ca, cert, key) if etcd.endpoints[0].startswith("https:") else None
    return EtcdStore(etcd.endpoints, clock, tls, etcd.username, lines[0] if lines else None)
