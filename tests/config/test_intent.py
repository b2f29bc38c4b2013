"""The folder's objects: accepted whole or refused whole, and each refusal in these very words."""

from collections.abc import Mapping

import pytest

from fsm.records import EdgeGatewaySpec, EdgeSpec, PoolSpec
from orchestrator.config.intent import Intent, read_intent
from tests.config.texts import BOTH, EDGE_GATEWAY, ONE_EDGE, POOL, edges_text

GROUP = "EdgeGateway/edge-gateway"
FIRST = "EIPPool/external-ip-pool-1"


def read(files: Mapping[str, str], lease_ttl_ms: int = 3000) -> Intent:
    """The intent of some texts."""
    return read_intent({name: text.encode() for name, text in files.items()}, "/etc/intent", lease_ttl_ms)


def refusal(files: Mapping[str, str]) -> list[str]:
    """What is said; a refused folder gives no object at all."""
    intent = read(files)
    assert not intent.ok
    assert intent.pools == ()
    assert intent.edge_gateways == ()
    return [str(problem) for problem in intent.problems]


def test_the_example_of_the_specification_is_accepted() -> None:
    intent = read({"a.yaml": EDGE_GATEWAY, "b.yml": POOL})
    assert intent.problems == ()
    assert intent.pools == (
        PoolSpec(
            name="external-ip-pool-1",
            aggregate="192.0.2.0/24",
            addresses=("192.0.2.0/26",),
            gateway_ref="edge-gateway",
            auto_assign=False,
            advertise_when_empty=True,
            namespaces=("ingress-system",),
            priority=10,
        ),
    )
    assert intent.edge_gateways == (
        EdgeGatewaySpec(
            name="edge-gateway",
            edges=(EdgeSpec("edge-1", "203.0.113.1", 64512),),
            gateways=("gw-a", "gw-b"),
            gateway_asn=64513,
        ),
    )


def test_every_field_of_an_edge_gateway_reaches_the_record() -> None:
    text = EDGE_GATEWAY + (
        "  tunnel: {mtu: 1400, keepaliveSeconds: 10, portBase: 40000, ipv4: 10.64.0.0/15, ipv6: 'fd01::/48',\n"
        "           probe: {ipv4: 10.66.0.0/23, ipv6: 'fd02::/64'}}\n"
        "  bgp: {holdTimeSeconds: 9}\n"
        "  failover: {profile: wan, preempt: true, preemptDelaySeconds: 60, onStoreLoss: hold, suspectAction: move,\n"
        "             drainLingerMilliseconds: 700}\n"
        "  standbys: 2\n"
        "status: {whatever: [1, 2]}\n"
    )
    intent = read({"a.yaml": text, "b.yaml": POOL + "  hold: true\n"})
    assert intent.problems == ()
    assert intent.pools[0].hold
    assert intent.edge_gateways[0] == EdgeGatewaySpec(
        name="edge-gateway",
        edges=(EdgeSpec("edge-1", "203.0.113.1", 64512),),
        gateways=("gw-a", "gw-b"),
        gateway_asn=64513,
        mtu=1400,
        keepalive_s=10,
        port_base=40000,
        tunnel_ipv4="10.64.0.0/15",
        tunnel_ipv6="fd01::/48",
        probe_ipv4="10.66.0.0/23",
        probe_ipv6="fd02::/64",
        hold_time_s=9,
        profile="wan",
        preempt=True,
        preempt_delay_s=60,
        suspect_action="move",
        drain_linger_ms=700,
        standbys=2,
    )


@pytest.mark.parametrize("count", [2, 64])
def test_a_group_of_several_edges_each_with_a_number_of_its_own(count: int) -> None:
    intent = read({"a.yaml": EDGE_GATEWAY.replace(ONE_EDGE, edges_text(count)), "b.yaml": POOL})
    assert intent.problems == ()
    edges = intent.edge_gateways[0].edges
    assert edges == tuple(EdgeSpec(f"edge-{n}", f"203.0.113.{n}", 64600 + n) for n in range(1, count + 1))


def test_several_documents_in_a_file_and_what_kubernetes_adds() -> None:
    pool = POOL.replace("metadata:\n", "metadata:\n  uid: abc\n  generation: 2\n  labels: {a: b}\n")
    assert read({"all.yaml": f"---\n{EDGE_GATEWAY}---\n# nothing\n---\n{pool}"}).ok


ONE = [
    (
        "unknown field",
        POOL + "  colour: red\n",
        f"{FIRST}: spec.colour: value 'red': unknown field; known here: aggregate",
    ),
    (
        "wrong type",
        POOL.replace("autoAssign: false", "autoAssign: 'no'"),
        f"{FIRST}: spec.autoAssign: value 'no': true or false",
    ),
    (
        "not a list",
        POOL.replace("  addresses:\n    - 192.0.2.0/26", "  addresses: 192.0.2.0/26"),
        f"{FIRST}: spec.addresses: value '192.0.2.0/26': a list of 1 to 64 prefixes within aggregate, IPv4 of /16",
    ),
    (
        "host bits",
        POOL.replace("192.0.2.0/26", "192.0.2.7/26"),
        f"{FIRST}: spec.addresses[0]: value '192.0.2.7/26': host bits are set; the prefix is 192.0.2.0/26",
    ),
    (
        "host bits in the aggregate",
        POOL.replace("192.0.2.0/24", "192.0.2.1/24"),
        f"{FIRST}: spec.aggregate: value '192.0.2.1/24': host bits are set; the prefix is 192.0.2.0/24",
    ),
    (
        "an address",
        POOL.replace("192.0.2.0/26", "192.0.2.7"),
        f"{FIRST}: spec.addresses[0]: value '192.0.2.7': an IPv4 prefix of /16 to /32 or an IPv6 prefix of /32 to "
        "/128 without host bits, such as 192.0.2.0/26 or 2001:db8:2::/64; a single address is 192.0.2.7/32",
    ),
    (
        "outside the aggregate",
        POOL.replace("192.0.2.0/26", "192.0.3.0/26"),
        f"{FIRST}: spec.addresses[0]: value '192.0.3.0/26': a prefix within the aggregate 192.0.2.0/24",
    ),
    (
        "too wide",
        POOL.replace("192.0.2.0/24", "10.0.0.0/8").replace("192.0.2.0/26", "10.0.0.0/15"),
        f"{FIRST}: spec.addresses[0]: value '10.0.0.0/15': an IPv4 prefix of /16 to /32 or an IPv6 prefix of /32 to "
        "/128 without host bits, such as 192.0.2.0/26 or 2001:db8:2::/64",
    ),
    (
        "IPv6 without its aggregate",
        POOL.replace("    - 192.0.2.0/26\n", "    - 192.0.2.0/26\n    - 2001:db8:2::/64\n"),
        f"{FIRST}: spec.addresses[1]: value '2001:db8:2::/64': a prefix within an aggregate of its family: give "
        "aggregateIPv6 as well",
    ),
    (
        "IPv4 in an IPv6 aggregate",
        POOL.replace("192.0.2.0/24", "2001:db8::/32"),
        f"{FIRST}: spec.addresses[0]: value '192.0.2.0/26': a prefix within an aggregate of its family: the aggregate "
        "is 2001:db8::/32",
    ),
    (
        "IPv6 outside its aggregate",
        BOTH.replace("2001:db8:2::/64", "2001:db9:2::/64"),
        f"{FIRST}: spec.addresses[1]: value '2001:db9:2::/64': a prefix within the aggregate 2001:db8::/32",
    ),
    (
        "IPv6 with host bits",
        BOTH.replace("2001:db8:2::/64", "2001:db8:2::1/64"),
        f"{FIRST}: spec.addresses[1]: value '2001:db8:2::1/64': host bits are set; the prefix is 2001:db8:2::/64",
    ),
    (
        "an IPv6 address",
        BOTH.replace("2001:db8:2::/64", "2001:db8:2::1"),
        f"{FIRST}: spec.addresses[1]: value '2001:db8:2::1': an IPv4 prefix of /16 to /32 or an IPv6 prefix of /32 to "
        "/128 without host bits, such as 192.0.2.0/26 or 2001:db8:2::/64; a single address is 2001:db8:2::1/128",
    ),
    (
        "IPv6 too wide",
        BOTH.replace("2001:db8::/32", "2001:d00::/24").replace("2001:db8:2::/64", "2001:d00::/31"),
        f"{FIRST}: spec.addresses[1]: value '2001:d00::/31': an IPv4 prefix of /16 to /32 or an IPv6 prefix of /32 to",
    ),
    (
        "two IPv6 aggregates",
        BOTH.replace("192.0.2.0/24", "2001:db8::/32").replace("192.0.2.0/26, ", ""),
        f"{FIRST}: spec.aggregateIPv6: value '2001:db8::/32': nothing, as aggregate is an IPv6 prefix already, "
        "2001:db8::/32",
    ),
    (
        "an IPv4 prefix as IPv6 aggregate",
        BOTH.replace("2001:db8::/32", "192.0.2.0/24"),
        f"{FIRST}: spec.aggregateIPv6: value '192.0.2.0/24': an IPv6 prefix of /128 or shorter without host bits",
    ),
    (
        "overlap within a pool",
        POOL.replace("    - 192.0.2.0/26\n", "    - 192.0.2.0/26\n    - 192.0.2.32/27\n"),
        f"{FIRST}: spec.addresses[1]: value '192.0.2.32/27': a prefix that does not overlap 192.0.2.0/26 of the",
    ),
    (
        "unknown gateway reference",
        POOL.replace("gatewayRef: edge-gateway", "gatewayRef: other"),
        f"{FIRST}: spec.gatewayRef: value 'other': the name of an EdgeGateway in this folder (edge-gateway)",
    ),
    (
        "name",
        POOL.replace("name: external-ip-pool-1", "name: Pool_1"),
        "EIPPool/Pool_1: metadata.name: value 'Pool_1': a DNS label: 1 to 63 of a-z, 0-9 and '-', not beginning or "
        "ending with '-' (RFC 1123)",
    ),
    (
        "cluster-scoped",
        POOL.replace("metadata:\n", "metadata:\n  namespace: x\n"),
        f"{FIRST}: metadata.namespace: value 'x': unknown field; known here: name, labels",
    ),
    (
        "api version",
        POOL.replace("v1alpha1", "v1"),
        f"{FIRST}: apiVersion: value 'networking.example.net/v1': networking.example.net/v1alpha1",
    ),
    (
        "no metadata",
        "apiVersion: networking.example.net/v1alpha1\nkind: EIPPool\nspec: {aggregate: 192.0.2.0/24, addresses: "
        "[192.0.2.0/26], gatewayRef: edge-gateway}\n",
        "EIPPool/?: metadata: missing: a mapping with name",
    ),
]


@pytest.mark.parametrize(("text", "said"), [case[1:] for case in ONE], ids=[case[0] for case in ONE])
def test_a_pool_that_is_refused(text: str, said: str) -> None:
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": text})
    assert len(found) == 1
    assert found[0].startswith(f"b.yaml: {said}")


TUNNEL = EDGE_GATEWAY + "  tunnel: "
GROUPS = [
    ("mtu too small", TUNNEL + "{mtu: 1279}\n", "spec.tunnel.mtu: value '1279': 1280 to 1420 bytes"),
    ("mtu too large", TUNNEL + "{mtu: 1421}\n", "spec.tunnel.mtu: value '1421': 1280 to 1420 bytes"),
    ("mtu a text", TUNNEL + "{mtu: '1300'}\n", "spec.tunnel.mtu: value '1300': a whole number: 1280 to 1420 bytes"),
    ("port base", TUNNEL + "{portBase: 65300}\n", "spec.tunnel.portBase: value '65300': 1024 to 65280"),
    (
        "tunnel range too small",
        TUNNEL + "{ipv4: 10.77.0.0/20}\n",
        "spec.tunnel.ipv4: value '10.77.0.0/20': an IPv4 prefix of /16 or shorter without host bits, such",
    ),
    (
        "probes within the tunnels",
        TUNNEL + "{probe: {ipv4: 10.77.1.0/24}}\n",
        "spec.tunnel.probe.ipv4: value '10.77.1.0/24': a prefix that does not overlap tunnel.ipv4, 10.77.0.0/16",
    ),
    (
        "tunnels over a pool",
        TUNNEL + "{ipv4: 192.0.0.0/16}\n",
        "spec.tunnel.ipv4: value '192.0.0.0/16': a prefix that does not overlap 192.0.2.0/26 of EIPPool/ext",
    ),
    (
        "probes over a pool",
        TUNNEL + "{probe: {ipv4: 192.0.2.0/24}}\n",
        "spec.tunnel.probe.ipv4: value '192.0.2.0/24': a prefix that does not overlap 192.0.2.0/26 of "
        "EIPPool/external-ip-pool-1",
    ),
    (
        "node selector",
        EDGE_GATEWAY + "  nodeSelector: {role: gateway}\n",
        "spec.nodeSelector: value 'a mapping': not supported by this version; list the names of the nodes un",
    ),
    (
        "on store loss",
        EDGE_GATEWAY + "  failover: {onStoreLoss: panic}\n",
        "spec.failover.onStoreLoss: value 'panic': hold or withdraw",
    ),
    (
        "profile",
        EDGE_GATEWAY + "  failover: {profile: slow}\n",
        "spec.failover.profile: value 'slow': fast, lan or wan",
    ),
    (
        "two edges at one place",
        EDGE_GATEWAY.replace("asn: 64512}", "asn: 64512}, {name: edge-2, endpoint: 203.0.113.1, asn: 64512}"),
        "spec.edges[1].endpoint: value '203.0.113.1': an endpoint that is not in the list already, as number 1",
    ),
    (
        "two edges of one name",
        EDGE_GATEWAY.replace("asn: 64512}", "asn: 64512}, {name: edge-1, endpoint: 203.0.113.9, asn: 64512}"),
        "spec.edges[1].name: value 'edge-1': a name that is not in the list already, as number 1",
    ),
    (
        "more edges than there are tables",
        EDGE_GATEWAY.replace(ONE_EDGE, edges_text(65)),
        "spec.edges: value 'a list': a list of 1 to 64 edges, each with name, endpoint and asn",
    ),
    (
        "no edge",
        EDGE_GATEWAY.replace(ONE_EDGE, ""),
        "spec.edges: value '[]': a list of 1 to 64 edges, each with name, endpoint and asn",
    ),
    (
        "endpoint with a port",
        EDGE_GATEWAY.replace("203.0.113.1", "'203.0.113.1:51820'"),
        "spec.edges[0].endpoint: value '203.0.113.1:51820': an IP address or a host name, without a port",
    ),
    (
        "one number for both",
        EDGE_GATEWAY.replace("64513", "64512"),
        "spec.edges[0].asn: value '64512': another number than gatewayASN, 64512",
    ),
    (
        "reserved number",
        EDGE_GATEWAY.replace("64513", "23456"),
        "spec.gatewayASN: value '23456': 1 to 4294967294, but not 23456 or 65535 (RFC 6793, RFC 7300)",
    ),
    (
        "gateway twice",
        EDGE_GATEWAY.replace("[gw-a, gw-b]", "[gw-a, gw-b, gw-a]"),
        "spec.gateways[2]: value 'gw-a': a name that is not in the list already, as number 1",
    ),
    (
        "gateway's name",
        EDGE_GATEWAY.replace("gw-b", "gw_b"),
        "spec.gateways[1]: value 'gw_b': a DNS label: 1 to 63 of a-z, 0-9 and '-', not beginning or ending with '-'",
    ),
    (
        "more than a slot can number",
        EDGE_GATEWAY.replace("gw-a, gw-b", ", ".join(f"gw-{n}" for n in range(256))),
        "spec.gateways: value 'a list': a list of 1 to 255 names",
    ),
]


@pytest.mark.parametrize(("text", "said"), [case[1:] for case in GROUPS], ids=[case[0] for case in GROUPS])
def test_an_edge_gateway_that_is_refused(text: str, said: str) -> None:
    found = refusal({"a.yaml": text, "b.yaml": POOL})
    assert len(found) == 1
    assert found[0].startswith(f"a.yaml: {GROUP}: {said}")


SECOND = POOL.replace("pool-1", "pool-2")


def test_pools_that_overlap() -> None:
    second = SECOND.replace("192.0.2.0/26", "192.0.2.32/28")
    third = POOL.replace("pool-1", "pool-3").replace("192.0.2.0/26", "192.0.2.48/28")
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": POOL, "c.yaml": second, "d.yaml": third})
    assert found == [
        f"c.yaml: EIPPool/external-ip-pool-2: spec.addresses[0]: value '192.0.2.32/28': a prefix that does not overlap "
        f"192.0.2.0/26 of {FIRST} in b.yaml",
        f"d.yaml: EIPPool/external-ip-pool-3: spec.addresses[0]: value '192.0.2.48/28': a prefix that does not overlap "
        f"192.0.2.0/26 of {FIRST} in b.yaml",
    ]


def test_pools_side_by_side_are_fine() -> None:
    assert read({"a.yaml": EDGE_GATEWAY, "b.yaml": POOL, "c.yaml": SECOND.replace(".0/26", ".64/26")}).ok


def test_one_object_in_two_files() -> None:
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": POOL, "c.yaml": f"\n{POOL}"})
    assert found == [
        f"c.yaml:2: {FIRST}: metadata.name: value 'external-ip-pool-1': an object is given once, and "
        "b.yaml:1 has it already"
    ]


def test_a_gateway_or_an_edge_in_two_groups() -> None:
    other = EDGE_GATEWAY.replace("name: edge-gateway", "name: other").replace("[gw-a, gw-b]", "[gw-c, gw-b]")
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": other, "c.yaml": POOL})
    assert found == [
        f"b.yaml: EdgeGateway/other: spec.edges[0].name: value 'edge-1': a name that {GROUP} does not have already",
        f"b.yaml: EdgeGateway/other: spec.gateways[1]: value 'gw-b': a name that {GROUP} does not have already",
    ]


@pytest.mark.parametrize("kind", ["TunnelPeer", "RouteAdvertisement"])
def test_an_output_in_the_folder(kind: str) -> None:
    output = f"apiVersion: networking.example.net/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\n"
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": POOL, "c.yaml": output})
    assert found == [
        f"c.yaml: {kind}/x: kind: value '{kind}': an output that bgplb writes itself, never an input; remove it "
        "from the folder"
    ]


ODD = [
    (
        "an unknown kind",
        "kind: Service\nmetadata: {name: x}\n",
        "c.yaml:1: kind: value 'Service': one of EIPPool, EdgeGat",
    ),
    (
        "no kind",
        "metadata: {name: x}\n",
        "c.yaml:1: kind: one of EIPPool, EdgeGateway (networking.example.net/v1alpha1)",
    ),
    ("no object", "- 1\n", "c.yaml:1: value 'a list': an object with apiVersion, kind, metadata and spec"),
    ("an empty file", "", "c.yaml: holds no object; remove the file, or finish writing it"),
    ("only a comment", "# later\n", "c.yaml: holds no object; remove the file, or finish writing it"),
    ("half a line", SECOND[:-30] + "[", "c.yaml:"),
    ("a key twice", SECOND + "kind: EIPPool\n", "c.yaml:16: the key 'kind' is given twice"),
]


@pytest.mark.parametrize(("text", "said"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_one_bad_file_refuses_the_whole_folder(text: str, said: str) -> None:
    found = refusal({"a.yaml": EDGE_GATEWAY, "b.yaml": POOL, "c.yaml": text})
    assert len(found) == 1
    assert found[0].startswith(said)


@pytest.mark.parametrize("cut", range(30, len(EDGE_GATEWAY) - 20, 7))
def test_a_half_written_file_is_never_taken_for_less(cut: int) -> None:
    assert refusal({"a.yaml": EDGE_GATEWAY[:cut], "b.yaml": POOL})


def test_an_empty_folder_is_a_problem_and_no_deletion() -> None:
    assert refusal({}) == ["/etc/intent: holds no *.yaml or *.yml file; an empty folder deletes nothing"]


def test_all_problems_of_all_files_come_at_once() -> None:
    found = refusal(
        {
            "a.yaml": EDGE_GATEWAY + "  tunnel: {mtu: 9000}\n  failover: {profile: slow}\n",
            "b.yaml": POOL.replace("192.0.2.0/26", "192.0.2.1/26"),
            "c.yaml": "kind: Foo\n",
        }
    )
    assert [line.split(": ")[0] for line in found] == ["a.yaml", "a.yaml", "b.yaml", "c.yaml:1"]


def test_detection_must_be_faster_than_the_lease() -> None:
    files = {"a.yaml": EDGE_GATEWAY + "  failover: {profile: wan}\n", "b.yaml": POOL}
    assert read(files, lease_ttl_ms=2000).ok
    assert [str(problem) for problem in read(files, lease_ttl_ms=900).problems] == [
        f"a.yaml: {GROUP}: spec.failover.profile: value 'wan': a profile whose detection time, here 900 ms, is below "
        "lease.ttl_ms, 900 ms"
    ]


def test_a_thousand_pools_are_read_and_checked() -> None:
    many = "".join(
        "---\n"
        + POOL.replace("pool-1", f"pool-{n}")
        .replace("192.0.2.0/24", "20.0.0.0/8")
        .replace("192.0.2.0/26", f"20.{n // 256}.{n % 256}.0/24")
        for n in range(1000)
    )
    intent = read({"a.yaml": EDGE_GATEWAY, "b.yaml": many})
    assert intent.ok
    assert len(intent.pools) == 1000
