"""Marker secrets, through every command and daemon and their errors: none comes out anywhere."""

import base64
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bgplb_lab import configs

from tests.contract.auth.guarded import PEOPLE, REPOSITORY, Guarded, Login
from tests.every_command import OTHERS
from tests.wiring.box import BGPLB, PYTHON, Box, Daemon, need
from tests.wiring.test_daemons import remembered

pytestmark = [pytest.mark.root]


RAW_MARKER = "marker of a private key"
RAW_KEY = RAW_MARKER.encode().ljust(32, b"\x07")
"""What fills it up is written in many ways, as by JSON: it is looked for without."""
WIREGUARD_KEY = base64.b64encode(RAW_KEY).decode()
HALF_KEY = WIREGUARD_KEY[:30]
TYPED = "marker-typed-where-it-does-not-belong"
AGENTS = ("edge-agent", "node-agent")
DAEMONS = ("orchestrator", *AGENTS)
COMMANDS: dict[str, tuple[str, ...]] = {
    "config check": tuple(f"{role} {{{role}}}" for role in DAEMONS),
    "config example": (*DAEMONS, "cli"),
    "etcd bootstrap-auth": ("--edge edge-3 {cli}", "--edge edge-3 {root}"),
    "fsm dump": tuple(f"-o {form} --history 5 {{cli}}" for form in ("table", "yaml", "json", "mermaid", "dot")),
    "fsm table": ("",),
    "gateway drain": ("gw-a {why} {cli}",),
    "gateway undrain": ("gw-a {why} {cli}",),
    "manifests apply": ("{manifests} {cli}",),
    "manifests check": ("{manifests}",),
    **{f"pool {verb}": ("{pool} {why} {cli}",) for verb in ("drain", "hold", "release")},
    "pool move": ("{pool} --to gw-b {why} {cli}",),
    "status": ("{cli}", "-o json {cli}"),
    "store accept": ("{cli}", "{root}"),
    "store init": ("{cli}", "{root}"),
    "version": ("",),
}
"""What each command is told, as the operator ({cli}) or as root; some are refused, and say why."""
WRONG_USAGE = 2
METRICS = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"


class Scene:
    """A guarded store and the daemons of a whole installation, by role; `seen` is all that came out, by source.

    The gateway is a machine of its own, all else shares a box.
    """

    def __init__(self, box: Box, gateway: Box, folder: Path, login: Login) -> None:
        self.box, self.gateway, self.seen = box, gateway, dict[str, str]()
        self.daemons: dict[str, Daemon] = {}
        self.files: dict[str, Path] = {}
        """Each daemon's configuration."""
        box.wire(gateway, "10.99.0.1/24", "10.99.0.2/24")
        store_folder = folder / "store"
        store_folder.mkdir()
        # etcd hashes each password that it is shown; how well it does so is not looked at here.
        quick = ("--bcrypt-cost=4",)
        self.store = Guarded(store_folder, login, inside=tuple(box._inside(())), host="10.99.0.1", more_flags=quick)
        self.store.cluster.start_all()
        self._files = 0

    def secrets(self) -> dict[str, str]:
        """Everything that must not be seen, by name: as text, as hexadecimal, and line by line of a PEM file."""
        found = {
            "typed": TYPED,
            "wireguard": HALF_KEY,
            "wireguard, hex": RAW_KEY.hex(),
            "raw": RAW_MARKER,
        }
        found |= {f"password of {user}": word for user, word in self.store.passwords.items()}
        for path in sorted(self.store.folder.glob("*.key")):
            lines = [line for line in path.read_text().splitlines() if not line.startswith("---")]
            found |= {f"{path.name}, line {number}": line for number, line in enumerate(lines) if len(line) > 20}
        return found

    def settings(self, role: str, user: str, **fields: Any) -> dict[str, Any]:
        name = user.removeprefix("bgplb-").partition("-")[2]
        ports = {"orchestrator": 9177, "edge-agent": 9178, "node-agent": 9179}
        found: dict[str, Any] = {
            "name": name,
            "etcd": self.store.section(user),
            "state_dir": str(self.box.folder / f"state-{role}"),
            "run_dir": f"/run/{role}",
            "http": {"listen": f"127.0.0.1:{ports[role]}"},
            "log": {"level": "debug"},
            **fields,
        }
        if role == "node-agent":
            found["lan"] = {"address": "10.10.0.11"}
        if role != "orchestrator":
            found["wireguard"] = fields.get("wireguard", {"private_key_file": str(self.box.folder / "wireguard.key")})
        return found

    def write(self, settings: dict[str, Any]) -> Path:
        self._files += 1
        path = self.box.folder / f"scene-{self._files}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def see(self, what: str, text: str) -> None:
        """This came out there, and what came out before still did."""
        self.seen[what] = self.seen.get(what, "") + text

    def run(self, what: str, *command: str) -> int:
        """A command to its end; all that it prints is kept."""
        done = self.box.run(*BGPLB, *command, check=False)
        self.see(what, done.stdout + done.stderr)
        return done.returncode

    def start(self, role: str) -> None:
        """Start a daemon on its machine, and wait until the store knows it."""
        machine = self.gateway if role == "node-agent" else self.box
        daemon = self.daemons[role] = machine.bgplb(role, self.files[role])
        self.box.wait(lambda: daemon.events("registered"), f"registration: {daemon.log.read_text()}")


@pytest.fixture(params=["password", "certificate"])
def scene(request: pytest.FixtureRequest, box: Box, other: Box, tmp_path: Path) -> Iterator[Scene]:
    need("etcd", "wireguard-go", "bird")
    made = Scene(box, other, tmp_path, request.param)
    key = box.folder / "wireguard.key"
    key.write_text(WIREGUARD_KEY + "\n")
    key.chmod(0o600)
    yield made
    made.store.cluster.close()


def at_work(scene: Scene) -> None:
    """Users and roles made, all daemons started and doing what they do."""
    box = scene.box
    scene.seen["bootstrap"] = scene.store.bootstrap(*PEOPLE, "--enable")
    manifests = box.folder / "manifests"
    manifests.mkdir()
    for name, text in configs.manifests().items():
        (manifests / name).write_text(text)
    orchestrator = scene.settings("orchestrator", "bgplb-orchestrator-orch-1", manifests=str(manifests))
    scene.files["orchestrator"] = scene.write(orchestrator)
    scene.start("orchestrator")
    for role, user in (("edge-agent", "bgplb-edge-edge-1"), ("node-agent", "bgplb-node-gw-a")):
        remembered(box, role)
        scene.files[role] = scene.write(scene.settings(role, user))
        scene.start(role)
    box.start("bird", "-f", "-c", "/run/edge-agent/bird/bird.conf", "-s", "/run/edge-agent/bird.ctl", name="bird")
    box.wait(lambda: "bgplb-g0" in box.links() and "bgplb-e0" in scene.gateway.links(), "the tunnels")


def look_everywhere(scene: Scene) -> None:
    """The commands' output, sockets, metrics, process lists, and all that the store holds."""
    box = scene.box
    cli = str(scene.write({"etcd": scene.store.section("bgplb-operator-alice")}))
    root = str(scene.write({"etcd": scene.store.section("root")}))
    assert scene.run("status", "status", "-o", "json", "--config", cli) == 0, scene.seen["status"]
    assert scene.run("dump", "fsm", "dump", "-o", "json", "--history", "5", "--config", cli) == 0
    scene.run("drain", "gateway", "drain", "gw-a", "--reason", "a test", "--config", cli)
    assert scene.run("socket", "fsm", "dump", "-o", "json", "--socket", "/run/orchestrator/orch-1.sock") == 0
    scene.run("bootstrap again", "etcd", "bootstrap-auth", "--edge", "edge-3", "--config", root)
    for port in (9177, 9178, 9179):
        machine = scene.gateway if port == 9179 else box
        told = machine.run(PYTHON, "-c", METRICS, f"http://127.0.0.1:{port}/metrics").stdout
        scene.see(f"metrics of {port}", told)
    processes = 0
    networks = {box.network, scene.gateway.network}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "ns" / "net").readlink() in networks:
                for file in ("cmdline", "environ", "comm"):
                    scene.see(f"{process.name} {file}", (process / file).read_text(errors="replace"))
                processes += 1
        except OSError:
            continue  # it ended meanwhile
    assert processes >= 6
    stored = box.run(PYTHON, "-c", DUMP, root).stdout
    scene.see("store", stored)
    assert "observed/edge/edge-1/base" in stored


DUMP = """
import asyncio, sys
from pathlib import Path
from orchestrator.config.cli import CliConfig
from orchestrator.config.files import load
from orchestrator.store.opening import open_store
from orchestrator.clock import BootClock
async def main():
    store = open_store(load(Path(sys.argv[1]), CliConfig).etcd, BootClock())
    for kv in (await store.list("/")).items:
        print(kv.key, kv.value.decode(errors="replace"))
    await store.close()
asyncio.run(main())
"""


def every_command(scene: Scene) -> None:
    """All of COMMANDS, one after the other."""
    told = {
        "cli": f"--config {scene.write({'etcd': scene.store.section('bgplb-operator-alice')})}",
        "root": f"--config {scene.write({'etcd': scene.store.section('root')})}",
        "manifests": str(scene.box.folder / "manifests"),
        "pool": configs.POOL["metadata"]["name"],
        "why": "--reason test",
        **{role: str(file) for role, file in scene.files.items()},
    }
    for name, lines in COMMANDS.items():
        for line in lines:
            code = scene.run(f"{name} {line}", *name.split(), *line.format(**told).split())
            assert code != WRONG_USAGE, scene.seen[f"{name} {line}"]


def suffer(scene: Scene) -> None:
    """What happens to daemons: killed, crashed, told to end; the store gone and back, a log-in spoilt meanwhile."""
    box = scene.box
    for role, number in (
        ("node-agent", signal.SIGKILL),
        ("edge-agent", signal.SIGABRT),
        ("orchestrator", signal.SIGTERM),
    ):
        scene.daemons[role].terminate(20.0, number)
        scene.start(role)
    assert not [path for folder in (box.folder, REPOSITORY) for path in folder.glob("core*")]
    secret = Path(
        str(scene.store.section("bgplb-edge-edge-1").get("key") or f"{scene.store.folder}/passwords/bgplb-edge-edge-1")
    )
    secret.chmod(0o640)
    scene.store.cluster.kill(0)
    box.wait(lambda: "others may read" in scene.daemons["edge-agent"].log.read_text(), "the edge's complaint", 30)
    scene.store.cluster.start(0)
    secret.chmod(0o600)
    sequence = "heartbeats/edge/edge-1"
    root = str(scene.write({"etcd": scene.store.section("root")}))
    box.wait(lambda: sequence in box.run(PYTHON, "-c", DUMP, root, check=False).stdout, "the edge to be back", 30)


def clean_up(scene: Scene) -> None:
    """The commands for the end, and their refusals."""
    for role in AGENTS:
        scene.run(f"cleanup beside a running {role}", role, "cleanup", "--config", str(scene.files[role]))
        scene.daemons[role].terminate(20.0)
        scene.run(f"cleanup of the {role}", role, "cleanup", "--config", str(scene.files[role]))


def go_wrong(scene: Scene) -> None:
    """Every secret where it is refused: readable by others, damaged, wrong, typed into the wrong place."""
    folder = scene.box.folder
    user = "bgplb-edge-edge-2"
    fit = scene.settings(
        "edge-agent", user, state_dir=str(folder / "wrong"), run_dir="/run/wrong", http={"listen": None}
    )

    def fails(what: str, code: int, **changed: Any) -> None:
        settings = {**fit, **changed}
        found = scene.run(what, "edge-agent", "--config", str(scene.write(settings)))
        assert found == code, scene.seen[what]
        assert "Traceback" not in scene.seen[what], scene.seen[what]

    def file(name: str, text: str, mode: int = 0o600) -> str:
        path = folder / name
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    fails("private key readable", 3, wireguard={"private_key_file": file("open.key", WIREGUARD_KEY, 0o644)})
    fails("private key damaged", 3, wireguard={"private_key_file": file("half.key", HALF_KEY)})
    fails("private key with more", 3, wireguard={"private_key_file": file("more.key", WIREGUARD_KEY + TYPED)})
    fails("typed as a field", 3, etcd={**fit["etcd"], "password": TYPED})
    fails("typed as a path", 3, wireguard={"private_key_file": TYPED})
    certificate = scene.store.login == "certificate"
    secret = "key" if certificate else "password_file"
    content = Path(str(fit["etcd"][secret])).read_text()
    fails("secret readable", 3, etcd={**fit["etcd"], secret: file("open.secret", content, 0o640)})
    fails("secret absent", 3, etcd={**fit["etcd"], secret: str(folder / "absent")})
    if certificate:
        fails("tls key damaged", 3, etcd={**fit["etcd"], "key": file("half.pem", content[: len(content) // 2])})
        other = (scene.store.folder / "bgplb-node-gw-b.key").read_text()
        fails("tls key of another", 3, etcd={**fit["etcd"], "key": file("other.pem", other)})
    else:
        wrong = scene.write({**fit, "etcd": {**fit["etcd"], "password_file": file("wrong.secret", TYPED + "\n")}})
        agent = scene.box.start(*BGPLB, "edge-agent", "--config", str(wrong), name="wrong-password")
        # It goes on with what it was told before, and says why it hears nothing new.
        scene.box.wait(lambda: "log-in of 'bgplb-edge-edge-2'" in agent.log.read_text(), "the refusal")
        agent.terminate()
        fails("no password", 3, etcd={**fit["etcd"], "password_file": file("empty.secret", "\n")})


def nothing_is_seen(scene: Scene) -> None:
    """No secret in anything that came out."""
    for log in sorted([*scene.box.folder.glob("*.log"), *scene.store.cluster.folder.glob("*.log")]):
        scene.see(log.name, log.read_text(errors="replace"))
    assert len(scene.secrets()) >= 8
    found = {
        f"{name} in {source}"
        for source, text in scene.seen.items()
        for name, secret in scene.secrets().items()
        if secret in text
    }
    assert found == set()


def test_no_secret_comes_out(scene: Scene) -> None:
    at_work(scene)
    look_everywhere(scene)
    scene.daemons["edge-agent"].terminate()  # two agents can't share a machine
    go_wrong(scene)
    nothing_is_seen(scene)


def test_every_command_is_looked_behind() -> None:
    """A new one has to be put into COMMANDS; the lab's own are looked behind in `tests/lab/test_lab_secrets.py`."""
    assert {*COMMANDS, *DAEMONS, *(f"{role} cleanup" for role in AGENTS)} == OTHERS


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_no_secret_comes_out_of_any_command_or_fault(scene: Scene) -> None:
    at_work(scene)
    look_everywhere(scene)
    every_command(scene)
    suffer(scene)
    look_everywhere(scene)
    clean_up(scene)
    nothing_is_seen(scene)


@pytest.mark.parametrize("scene", ["certificate"], indirect=True)
def test_the_look_sees_something(scene: Scene) -> None:
    """A marker that is put into a command line is found there, or the test above proves nothing."""
    scene.box.start(PYTHON, "-c", "import time; time.sleep(60)", TYPED, name="told")
    at_work(scene)
    look_everywhere(scene)
    assert any(TYPED in text for text in scene.seen.values())
