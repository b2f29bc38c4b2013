"""A real etcd behind TLS with access control on, set up by the command that an operator would use."""

import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import trustme
import yaml

from orchestrator.clock import BootClock
from orchestrator.config.sections import Etcd
from orchestrator.store.etcd import EtcdStore
from orchestrator.store.opening import open_store
from tests.contract.store.cluster import EtcdCluster

BGPLB = (sys.executable, "-c", "from orchestrator.cli.main import main; main()")
REPOSITORY = Path(__file__).resolve().parents[3]
Login = Literal["password", "certificate"]

PEOPLE = ("--orchestrator", "orch-1", "--orchestrator", "orch-2", "--edge", "edge-1", "--edge", "edge-2",
          "--node", "gw-a", "--node", "gw-b", "--operator", "alice")  # fmt: skip
USERS = ("root", "bgplb-orchestrator-orch-1", "bgplb-orchestrator-orch-2", "bgplb-edge-edge-1", "bgplb-edge-edge-2",
         "bgplb-node-gw-a", "bgplb-node-gw-b", "bgplb-operator-alice")  # fmt: skip


@dataclass
class Guarded:
    """One member, its authority, and a folder with what each user logs in with."""

    folder: Path
    login: Login
    program: str | Path = "etcd"
    inside: tuple[str, ...] = ()
    """What enters the machine that etcd and the commands run on, if it is not this one."""
    host: str = "127.0.0.1"
    more_flags: tuple[str, ...] = ()
    passwords: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self.folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.folder / "clients.pem")
        server = self._authority.issue_cert(self.host, "localhost")
        self._keep(server, "server")
        flags = [f"--cert-file={self.folder}/server.pem", f"--key-file={self.folder}/server.key"]
        if self.login == "certificate":
            flags += [f"--trusted-ca-file={self.folder}/clients.pem", "--client-cert-auth=true"]
        self.cluster = EtcdCluster(
            1,
            (*flags, *self.more_flags),
            scheme="https",
            command=(*self.inside, str(self.program)),
            host=self.host,
        )
        (self.folder / "passwords").mkdir()
        for user in USERS:
            if self.login == "certificate":
                self._keep(self._authority.issue_cert("client.example", common_name=user), user)
            else:
                self.passwords[user] = secrets.token_hex(16)
                path = self.folder / "passwords" / user
                path.write_text(self.passwords[user] + "\n")
                path.chmod(0o600)

    def _keep(self, leaf: trustme.LeafCert, name: str) -> None:
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        (self.folder / f"{name}.pem").write_bytes(chain)
        key = self.folder / f"{name}.key"
        key.touch(mode=0o600)
        leaf.private_key_pem.write_to_path(key)

    def distrust(self) -> None:
        """From its next start etcd takes only certificates that are made after this."""
        self._authority = trustme.CA()
        (self.folder / "clients.pem").write_bytes(self._authority.cert_pem.bytes())

    def certify(self, user: str) -> None:
        """Another certificate for this user, in the place of the one before."""
        self._keep(self._authority.issue_cert("client.example", common_name=user), user)

    def section(self, user: str) -> dict[str, object]:
        """The section `etcd` of a configuration file for this user."""
        found: dict[str, object] = {"endpoints": self.cluster.endpoints, "ca": f"{self.folder}/ca.pem"}
        if self.login == "certificate":
            return {**found, "cert": f"{self.folder}/{user}.pem", "key": f"{self.folder}/{user}.key"}
        return {**found, "username": user, "password_file": f"{self.folder}/passwords/{user}"}

    def config(self, user: str, file: str, **fields: object) -> Path:
        """A configuration file that logs in as this user."""
        path = self.folder / f"{file}.yaml"
        path.write_text(yaml.safe_dump({"etcd": self.section(user), **fields}))
        return path

    def store(self, user: str) -> EtcdStore:
        """The store as this user has it; call it in a running loop."""
        return open_store(section_of(self.section(user)), BootClock())

    def bgplb(self, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        more = ["--config", str(config)] if config is not None else []
        return subprocess.run(
            [*self.inside, *BGPLB, *arguments, *more],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def bootstrap(self, *arguments: str) -> str:
        """`bgplb etcd bootstrap-auth` as root for everybody of PEOPLE; what it printed. Raises when it fails."""
        words = ["etcd", "bootstrap-auth", *(arguments or PEOPLE)]
        if self.login == "password":
            words += ["--passwords", f"{self.folder}/passwords"]
        done = self.bgplb(*words, config=self.config("root", "root"))
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def section_of(fields: dict[str, object]) -> Etcd:
    """The section as a daemon has it after it has read its file."""
    return Etcd.model_validate(fields)
