"""The files that the tests begin with; each test breaks one thing in one of them."""

ONE_EDGE = "{name: edge-1, endpoint: 203.0.113.1, asn: 64512}"


def edges_text(count: int) -> str:
    """So many edges, for the list."""
    return ", ".join(f"{{name: edge-{n}, endpoint: 203.0.113.{n}, asn: {64600 + n}}}" for n in range(1, count + 1))


EDGE_GATEWAY = """\
apiVersion: networking.example.net/v1alpha1
kind: EdgeGateway
metadata:
  name: edge-gateway
spec:
  edges: [{name: edge-1, endpoint: 203.0.113.1, asn: 64512}]
  gateways: [gw-a, gw-b]
  gatewayASN: 64513
"""

POOL = """\
apiVersion: networking.example.net/v1alpha1
kind: EIPPool
metadata:
  name: external-ip-pool-1
spec:
  aggregate: 192.0.2.0/24
  addresses:
    - 192.0.2.0/26
  gatewayRef: edge-gateway
  autoAssign: false
  advertiseWhenEmpty: true
  serviceAllocation:
    namespaces:
      - ingress-system
    priority: 10
"""

NODE_AGENT = """\
name: gw-a
etcd:
  endpoints: ["http://10.99.0.1:2379"]
lan:
  address: 10.10.0.11
"""

ORCHESTRATOR = """\
name: orch-1
etcd:
  endpoints: ["http://10.99.0.1:2379"]
"""

BOTH = POOL.replace(
    "  addresses:\n    - 192.0.2.0/26\n",
    "  aggregateIPv6: 2001:db8::/32\n  addresses: [192.0.2.0/26, 2001:db8:2::/64]\n",
)
