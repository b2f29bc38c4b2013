"""Configuration files: what is good is read with its defaults, and all that is bad is said at once, in these words."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from orchestrator.config.cli import CliConfig
from orchestrator.config.edge_agent import EdgeAgentConfig
from orchestrator.config.example import example_text
from orchestrator.config.files import load, parse
from orchestrator.config.node_agent import NodeAgentConfig
from orchestrator.config.orchestrator import OrchestratorConfig
from orchestrator.config.problems import ConfigError
from orchestrator.config.sections import Marks
from tests.config.texts import NODE_AGENT, ORCHESTRATOR


def problems(text: str, model: type[BaseModel] = NodeAgentConfig) -> list[str]:
    """What is said about a text; a text that is good fails the test."""
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), model, "f.yaml")
    return str(caught.value).splitlines()


def test_defaults_are_those_that_are_documented() -> None:
    config = parse(NODE_AGENT.encode(), NodeAgentConfig, "f.yaml")
    assert (config.lease.ttl_ms, config.lease.renew_every_ms) == (3000, 1000)
    assert (config.lease.heartbeat_every_ms, config.lease.stale_after_ms) == (250, 1000)
    assert (config.tables.main, config.tables.signal, config.tables.first) == (254, 10177, 10077)
    assert config.etcd.prefix == "/bgplb/v1/"
    assert config.bird.socket == Path("/run/bgplb/bird.ctl")
    assert config.bird.config_file == Path("/run/bgplb/bird/bird.conf")
    assert config.bird.announce_file == Path("/run/bgplb/bird/announce.conf")
    assert config.wireguard.private_key_file == Path("/var/lib/bgplb/wireguard.key")
    assert config.wireguard.interface_prefix == "bgplb-"
    assert config.admin_socket == Path("/run/bgplb/gw-a.sock")
    assert config.shutdown == "drain"


def test_places_follow_run_dir_and_state_dir_unless_given() -> None:
    text = NODE_AGENT + "run_dir: /run/x/\nstate_dir: /var/x\nbird: {socket: /run/other.ctl}\n"
    config = parse(text.encode(), NodeAgentConfig, "f.yaml")
    assert config.bird.socket == Path("/run/other.ctl")
    assert config.bird.config_dir == Path("/run/x/bird")
    assert config.wireguard.private_key_file == Path("/var/x/wireguard.key")


def test_each_role_listens_on_a_port_of_its_own() -> None:
    edge = NODE_AGENT.split("lan:")[0]
    listen = [
        parse(ORCHESTRATOR.encode(), OrchestratorConfig, "f").http.listen,
        parse(edge.encode(), EdgeAgentConfig, "f").http.listen,
        parse(NODE_AGENT.encode(), NodeAgentConfig, "f").http.listen,
    ]
    assert len(set(listen)) == 3
    assert all(str(address).startswith("127.0.0.1:") for address in listen)
    silent = parse((ORCHESTRATOR + "http: {listen: null}\n").encode(), OrchestratorConfig, "f")
    assert silent.http.listen is None


def test_a_member_without_a_scheme_is_http() -> None:
    config = parse(b"etcd: {endpoints: ['10.99.0.1:2379']}", CliConfig, "f")
    assert config.etcd.endpoints == ("http://10.99.0.1:2379",)


BAD = [
    ("unknown field", "colour: red\n", "f.yaml: colour: value 'red': unknown field; known here: name, "),
    ("unknown in a section", "log: {size: 1}\n", "f.yaml: log.size: value '1': unknown field; known here: level, f"),
    ("text for a number", "tables: {signal: '7'}\n", "f.yaml: tables.signal: value '7': a whole number: 1 to 42"),
    ("number for a text", "state_dir: 5\n", "f.yaml: state_dir: value '5': an absolute path"),
    ("yes for a word", "shutdown: yes\n", "f.yaml: shutdown: value 'true': drain or leave"),
    ("section no mapping", "lease: 5\n", "f.yaml: lease: value '5': a mapping with the fields ttl_ms, renew_every_ms"),
    ("section a list", "bird: [1]\n", "f.yaml: bird: value 'a list': a mapping with the fields socket, config_dir"),
    ("relative path", "run_dir: run\n", "f.yaml: run_dir: value 'run': an absolute path"),
    ("log level", "log: {level: loud}\n", "f.yaml: log.level: value 'loud': debug, info, warning or error"),
    (
        "ttl too short",
        "lease: {ttl_ms: 1000, renew_every_ms: 300, stale_after_ms: 600}\n",
        "f.yaml: lease.ttl_ms: value '1000': 2000 to 60000 milliseconds, in whole seconds",
    ),
    (
        "renewal too rare",
        "lease: {renew_every_ms: 1500}\n",
        "f.yaml: lease.renew_every_ms: value '1500': at most a third of ttl_ms, 1000 milliseconds",
    ),
    (
        "stale after the lease",
        "lease: {stale_after_ms: 3000}\n",
        "f.yaml: lease.stale_after_ms: value '3000': less than ttl_ms, 3000 milliseconds",
    ),
    (
        "stale before the next heartbeat",
        "lease: {heartbeat_every_ms: 900}\n",
        "f.yaml: lease.stale_after_ms: default '1000': at least twice heartbeat_every_ms, 1800 milliseconds",
    ),
    ("signal is main", "tables: {signal: 254}\n", "f.yaml: tables.signal: value '254': another table than main, 254"),
    (
        "answers meet signal",
        "tables: {first: 10150}\n",
        "f.yaml: tables.first: value '10150': 64 numbers from here on that do not meet signal, 10177",
    ),
    ("kernel's table", "tables: {signal: 255}\n", "f.yaml: tables.signal: value '255': not 255, the kernel's own"),
    ("mask with a hole", "marks: {mask: 0x0f0f}\n", "f.yaml: marks.mask: value '3855': 4 to 16 bits in a row"),
    ("mask too narrow", "marks: {mask: 0x7}\n", "f.yaml: marks.mask: value '7': 4 to 16 bits in a row"),
    ("no interface", "wireguard: {interface_prefix: 'x y'}\n", "f.yaml: wireguard.interface_prefix: value 'x y': 1 to"),
    ("listen", "http: {listen: 'localhost:80'}\n", "f.yaml: http.listen: value 'localhost:80': ADDRESS:PORT"),
    ("listen port", "http: {listen: '[::1]:99999'}\n", "f.yaml: http.listen: value '[::1]:99999': a port of 0 to 6"),
]


@pytest.mark.parametrize(("line", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_value_is_named_with_what_is_allowed(line: str, said: str) -> None:
    found = problems(NODE_AGENT + line)
    assert len(found) == 1
    assert found[0].startswith(said)


BAD_ETCD = [
    ("{}", "f: etcd.endpoints: missing: a list of at least one http://HOST:PORT or https://HOST:PORT"),
    ("{endpoints: []}", "f: etcd.endpoints: value '[]': a list of at least one http://HOST:PORT or https://HOST:PORT"),
    ("{endpoints: ['ftp://a:1']}", "f: etcd.endpoints[0]: value 'ftp://a:1': http://HOST:PORT or https://HOST:PORT"),
    ("{endpoints: ['http://a:1', 'https://b:1']}", "f: etcd.endpoints: value 'a list': all with http:// or all with"),
    ("{endpoints: ['https://a:1'], cert: /c}", "f: etcd.key: missing: cert and key are given together or not"),
    ("{endpoints: ['http://a:1'], ca: /c}", "f: etcd.endpoints: value 'a list': https:// as ca or cert is given"),
    ("{endpoints: ['http://a:1'], username: u}", "f: etcd.password_file: missing: username and password_file are"),
    ("{endpoints: ['http://a:1'], prefix: v1}", "f: etcd.prefix: value 'v1': a path that begins and ends with '/'"),
]


@pytest.mark.parametrize(("section", "said"), BAD_ETCD)
def test_a_bad_etcd_section(section: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"etcd: {section}".encode(), CliConfig, "f")
    assert str(caught.value).startswith(said)
    assert len(caught.value.problems) == 1


def test_all_problems_come_at_once() -> None:
    found = problems("name: GW\nlan: {address: x, targets: [10.0.0.1, y]}\nlog: {level: loud}\nfoo: 1\n")
    fields = [line.split(": ")[1] for line in found]
    assert fields == ["name", "etcd", "log.level", "lan.address", "lan.targets[1]", "foo"]


BROKEN = [
    ("", "f.yaml: name: missing: a DNS label"),
    ("name: [\n", "f.yaml:2: not valid YAML: "),
    ("name: a\nname: b\n", "f.yaml:2: the key 'name' is given twice"),
    ("a: &x [1]\nb: *x\n", "f.yaml:1: anchors and aliases (&NAME, *NAME) are not read; write it out"),
    ("- 1\n", "f.yaml: value 'a list': a mapping with the fields name, state_dir"),
    ("name: a\n---\nname: b\n", "f.yaml:3: a second document; one is allowed"),
    ("name: \x00\n", "f.yaml:1: not valid YAML: "),
    ("name: 2026-02-31\n", "f.yaml:1: not valid YAML: "),
    ("[" * 3000, "f.yaml:1: "),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
def test_a_text_that_is_no_configuration(text: str, said: str) -> None:
    assert problems(text)[0].startswith(said)


def test_a_text_that_is_not_utf8_or_too_long() -> None:
    with pytest.raises(ConfigError, match="f:2: the text is not UTF-8"):
        parse(b"a: 1\nb: \xff\xfe\n", CliConfig, "f")
    with pytest.raises(ConfigError, match=r"the file has \d+ bytes, at most 1048576 are read"):
        parse(b"#" * 1_048_577, CliConfig, "f")


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file or directory"):
        load(tmp_path / "absent.yaml", CliConfig)


@pytest.mark.parametrize(
    ("model", "role"),
    [
        (OrchestratorConfig, "orchestrator"),
        (EdgeAgentConfig, "edge-agent"),
        (NodeAgentConfig, "node-agent"),
        (CliConfig, "cli"),
    ],
)
def test_an_example_is_good_also_with_every_comment_taken_away(model: type[BaseModel], role: str) -> None:
    text = example_text(model, role)
    as_printed = parse(text.encode(), model, "example")
    settings = [line for line in text.splitlines() if re.match(r" *(# )?[a-z_]+:( |$)", line)]
    every = "\n".join(line.replace("# ", "", 1) for line in settings)
    assert parse(every.encode(), model, "every").model_dump(exclude={"lan", "manifests"}) == as_printed.model_dump(
        exclude={"lan", "manifests"}
    )
    assert set(model.model_fields) <= {line.lstrip("# ").split(":")[0] for line in settings}


def test_marks_are_within_the_mask_and_differ_per_edge() -> None:
    marks = Marks(mask=0x0000_0FF0)
    assert [marks.value(0), marks.value(1), marks.value(254)] == [0x10, 0x20, 0xFF0]
    with pytest.raises(ValueError, match="no room for edge number 255"):
        marks.value(255)
