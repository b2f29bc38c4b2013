"""From the section `etcd` of a configuration to an open store."""

import ssl
from collections.abc import Callable
from pathlib import Path

from fsm.ports import Clock
from orchestrator.config.sections import Etcd
from orchestrator.store.etcd import EtcdStore, Login, Tls
from orchestrator.store.secret_files import SecretFileError, read_password, read_secret


def read_tls(etcd: Etcd) -> Tls | None:
    """What the section says of certificates; None for plain http.

    Raises OSError, with its file name, for what can't be read or used: gRPC would only say that nobody answers.
    """
    tls = _texts(etcd)
    _check(etcd, tls)
    return tls


def read_login(etcd: Etcd, known: Login | None = None) -> Login:
    """What the section's files say now, checked unless it is what is `known`. Raises as `open_store` does."""
    password = read_password(etcd.password_file) if etcd.password_file is not None else None
    login = Login(_texts(etcd), etcd.username, password)
    if login != known:
        _check(etcd, login.tls)
    return login


def _texts(etcd: Etcd) -> Tls | None:
    if not etcd.endpoints[0].startswith("https:"):
        return None
    key = read_secret(etcd.key) if etcd.key is not None else None
    ca = etcd.ca.read_bytes() if etcd.ca is not None else b""
    cert = etcd.cert.read_bytes() if etcd.cert is not None else None
    return Tls(ca, cert, key)


def _check(etcd: Etcd, tls: Tls | None) -> None:
    """Whether OpenSSL takes the files; it reads them itself."""
    if tls is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if etcd.ca is not None:
        _must_be_usable(lambda: context.load_verify_locations(etcd.ca), etcd.ca, "no certificates in PEM")
    if etcd.cert is not None and etcd.key is not None:
        # Without a password for it OpenSSL would ask for one at the terminal: an empty one is refused at once.
        what = f"no private key in PEM that belongs to {etcd.cert} and needs no password"
        _must_be_usable(lambda: context.load_cert_chain(str(etcd.cert), etcd.key, password=""), etcd.key, what)


def _must_be_usable(load: Callable[[], None], path: Path, wrong: str) -> None:
    """Raises SecretFileError with those words, and with nothing of what the file holds."""
    try:
        load()
    except (ssl.SSLError, ValueError):
        raise SecretFileError(path, wrong) from None


def open_store(etcd: Etcd, clock: Clock) -> EtcdStore:
    """The store that the section names. Call it in a running loop. Its files are read again when they stop to serve.

    Raises OSError, with its file name, when a certificate, key or password can't be read, or when others may read a
    key or password too.
    """
    login = read_login(etcd)

    def again(known: Login) -> Login:
        return read_login(etcd, known)

    return EtcdStore(etcd.endpoints, clock, login.tls, login.username, login.password, read_again=again)
