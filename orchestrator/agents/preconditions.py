"""What a gateway must be to carry traffic, checked on the machine itself; each failure names what would help."""

from collections.abc import Iterable, Mapping

from dataplane.model import KernelState, Rule
from dataplane.nft_foreign import ForeignRule, Ours
from dataplane.sysctl import IPV6_FORWARDING, IPVS_REROUTE
from fsm.records import Precondition
from orchestrator.agents.permit import LEAST_TTL_MS


def forwarding(sysctls: Mapping[str, str], ipv6: bool) -> Precondition:
    """Packets are forwarded at all, of each family in use (`ipv6`: whether IPv6 is)."""
    names = ["net.ipv4.ip_forward", *([IPV6_FORWARDING] if ipv6 else [])]
    values = {name: sysctls.get(name, "?") for name in names}
    detail = ", ".join(f"{name} = {value}" for name, value in values.items())
    return Precondition("forwarding", set(values.values()) == {"1"}, detail)


def lan_reverse_path(sysctls: Mapping[str, str], device: str) -> Precondition:
    """Answers of the cluster LAN pass its reverse path filter.

    With `src_valid_mark` the filter looks the way back up with the answer's own mark, which leads into the tunnel: a
    strict filter then drops every answer (ip-sysctl.rst, rp_filter and src_valid_mark).
    """
    strict = max(sysctls.get(f"net.ipv4.conf.{c}.rp_filter", "0") for c in ("all", device)) == "1"
    marked = "1" in (sysctls.get(f"net.ipv4.conf.{c}.src_valid_mark", "0") for c in ("all", device))
    detail = f"rp_filter is strict on {device} while src_valid_mark is set: set net.ipv4.conf.{device}.rp_filter = 2"
    return Precondition("lan-reverse-path", not (strict and marked), detail if strict and marked else "")


def ipvs_answers(sysctls: Mapping[str, str]) -> Precondition:
    """IPVS looks for the way of its answers once more, with the pool's address as their source (ipvs-sysctl.rst)."""
    value = sysctls[IPVS_REROUTE]
    return Precondition("ipvs-answers", value != "0", f"{IPVS_REROUTE} = {value}" if value == "0" else "")


def store_loss(on_store_loss: str, lease_ttl_ms: int) -> Precondition:
    """A gateway that shall withdraw when it loses the store has a lease that is long enough for it."""
    ok = on_store_loss != "withdraw" or lease_ttl_ms >= LEAST_TTL_MS
    need = (
        f"onStoreLoss: withdraw needs lease.ttl_ms of {LEAST_TTL_MS} at least, it is {lease_ttl_ms}: it holds instead"
    )
    return Precondition("store-loss", ok, "" if ok else need)


def in_place(name: str, actual: object, wanted: object, what: str) -> Precondition:
    """Something of ours is as it should be."""
    return Precondition(name, actual == wanted, "" if actual == wanted else f"{what} differ from what they should be")


def tunnels(actual: KernelState, wanted: KernelState) -> Precondition:
    """Every tunnel interface is there, up, with its MTU."""
    settings = {(link.name, link.mtu, link.up) for link in actual.links}
    missing = sorted(link.name for link in wanted.links if (link.name, link.mtu, link.up) not in settings)
    return Precondition("tunnels", not missing, f"not as they should be: {', '.join(missing)}" if missing else "")


def routes(actual: KernelState, wanted: KernelState) -> Precondition:
    """The answers' tables, with `mtu lock`."""
    missing = sorted(f"{r.prefix} in table {r.table}" for r in wanted.routes - actual.routes)
    return Precondition("answer-routes", not missing, f"missing: {', '.join(missing)}" if missing else "")


def rules(actual: KernelState, wanted: KernelState) -> Precondition:
    """The rules that lead answers to their table."""
    missing = sorted(f"{r.priority} {r.source or hex(r.fwmark or 0)}" for r in wanted.rules - actual.rules)
    return Precondition("answer-rules", not missing, f"missing: {', '.join(missing)}" if missing else "")


def foreign_marks(ours: Ours, rules: Iterable[Rule], found: Iterable[ForeignRule]) -> Precondition:
    """Nobody else reads our marks or copies them to requests, as rules of an older set-up may do.

    It is for the operator to remove them: they are not ours.
    """
    problems = [
        f"ip rule {rule.priority} (fwmark {rule.fwmark:#x}/{rule.fwmask:#x} to table {rule.table}) is not ours and "
        f"takes packets with our mark: ip {'-6 ' if rule.family == 'ipv6' else ''}rule del priority {rule.priority}"
        for rule in sorted(rules, key=lambda rule: (rule.family, rule.priority))
        if not rule.ours and _reads(rule, ours)
    ]
    problems += [
        f"rule {rule.handle} of chain {rule.chain} in nft table {rule.family} {rule.table} {rule.does}: {rule.removal}"
        for rule in found
    ]
    detail = "; ".join(problems) + f"; or give marks.mask, now {ours.mask:#x}, other bits"
    return Precondition("foreign-marks", not problems, detail if problems else "")


def _reads(rule: Rule, ours: Ours) -> bool:
    """Whether the rule takes packets that carry one of our marks, whatever their other bits are."""
    if rule.fwmark is None or rule.fwmask is None or not rule.fwmask & ours.mask:
        return False
    return any(not (mark ^ rule.fwmark) & rule.fwmask & ours.mask for mark in ours.marks)
