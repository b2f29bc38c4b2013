"""How a lab's daemons log in to etcd: an authority of the lab's own, its certificates, its passwords.

Everything is made anew for each lab, lies below its disk folder and goes with it.
"""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from bgplb_lab import topology
from bgplb_lab.topology import Auth
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = "root"
"""etcd's own user who may do everything; its name is fixed."""
OPERATOR = "bgplb-operator-lab"
"""Who uses `bgplb` on the orchestrators' machines."""
VALID = timedelta(days=2)
PASSWORDS = "passwords"
"""Folder of the file for each user, as `bgplb etcd bootstrap-auth --passwords` wants it."""
_FOLDER = "/etc/bgplb"


def daemon_user(machine: str) -> str | None:
    """The user in etcd of the daemon on a machine, None where there is none."""
    for kind, names in (
        ("orchestrator", topology.ORCHESTRATORS),
        ("edge", topology.EDGES),
        ("node", topology.GATEWAYS),
    ):
        if machine in names:
            return f"bgplb-{kind}-{machine}"
    return None


def users() -> list[str]:
    """Everybody who logs in."""
    daemons = (daemon_user(name) for name in (*topology.ORCHESTRATORS, *topology.EDGES, *topology.GATEWAYS))
    return [ROOT, OPERATOR, *(user for user in daemons if user is not None)]


def bootstrap_words(auth: Auth) -> list[str]:
    """Arguments of `bgplb` that make all users and roles; for a machine that has root's files."""
    words = ["etcd", "bootstrap-auth", "--operator", OPERATOR.removeprefix("bgplb-operator-"), "--enable"]
    for option, names in (
        ("--orchestrator", topology.ORCHESTRATORS),
        ("--edge", topology.EDGES),
        ("--node", topology.GATEWAYS),
    ):
        words += [word for name in names for word in (option, name)]
    if auth is Auth.PASSWORD:
        words += ["--passwords", f"{_FOLDER}/{PASSWORDS}"]
    return [*words, "--config", f"{_FOLDER}/root.yaml"]


def section(auth: Auth, user: str, stem: str = "etcd") -> dict[str, object]:
    """The section `etcd` of a configuration file; `stem` names the user's files on the machine."""
    found: dict[str, object] = {"endpoints": list(topology.endpoints(auth).values())}
    if auth is Auth.NONE:
        return found
    found["ca"] = f"{_FOLDER}/ca.pem"
    if auth is Auth.CERTIFICATE:
        return {**found, "cert": f"{_FOLDER}/{stem}.pem", "key": f"{_FOLDER}/{stem}.key"}
    return {**found, "username": user, "password_file": f"{_FOLDER}/{stem}.password"}


class Issuer:
    """Makes the lab's credentials in memory and hands each machine its own."""

    def __init__(self, auth: Auth) -> None:
        self.auth = auth
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bgplb-lab-ca")])
        authority = self._certificate(self._name, self._key, None, authority=True)
        self.ca = authority.public_bytes(serialization.Encoding.PEM).decode()
        self._passwords = {user: secrets.token_hex(16) for user in users()}

    def _certificate(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, address: str | None, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + VALID)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _issue(self, common_name: str, stem: str, address: str | None = None) -> dict[str, str]:
        """A certificate and its key: file name -> PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._certificate(name, key, address)
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return {f"{stem}.pem": pem, f"{stem}.key": plain.decode()}

    def _login(self, user: str, stem: str) -> dict[str, str]:
        """What a user logs in with: file name -> text."""
        if self.auth is Auth.CERTIFICATE:
            return self._issue(user, stem)
        return {f"{stem}.password": self._passwords[user] + "\n"}

    def files(self, machine: str) -> Iterator[tuple[str, str]]:
        """Files of one machine below /etc/bgplb that hold what it logs in with: relative path, text."""
        if self.auth is Auth.NONE:
            return
        user = daemon_user(machine)
        if machine in topology.ETCD or user is not None:
            yield "ca.pem", self.ca
        if machine in topology.ETCD:
            yield from self._issue(machine, "member", topology.ETCD[machine]).items()
        if user is not None:
            yield from self._login(user, "etcd").items()
        if machine in topology.ORCHESTRATORS:
            yield from self._login(OPERATOR, "operator").items()
            yield from self._login(ROOT, ROOT).items()
            if self.auth is Auth.PASSWORD:
                yield from ((f"{PASSWORDS}/{user}", f"{word}\n") for user, word in self._passwords.items())


def write(folder: Path, relative: str, text: str) -> None:
    """Write one of `Issuer.files` below a machine's /etc/bgplb, readable by its owner alone."""
    path = folder / relative
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
