"""The faults as data, and their nft filters as text: nothing here needs a lab."""

import pytest
from bgplb_lab import fault_links, faults, topology
from bgplb_lab.errors import NotFound, Usage
from bgplb_lab.topology import Programs

MACHINES = topology.machines(Programs("python", "bgplb", "/lab"), edges=2)


def test_every_fault_strikes_on_machines_that_exist_and_teaches_something() -> None:
    assert len(faults.FAULTS) == len(faults.EVERY_FAULT)
    for fault in faults.EVERY_FAULT:
        assert fault.teaches
        assert fault.targets == ("all",) or set(fault.targets) <= set(MACHINES)


def test_a_service_fault_strikes_only_where_that_service_is() -> None:
    for prefix, service in (("orchestrator-", "orchestrator"), ("etcd-", "etcd"), ("bird-", "bird")):
        for fault in faults.EVERY_FAULT:
            if fault.name.startswith(prefix) and fault.targets != ("all",):
                for target in fault.targets:
                    assert service in [found.name for found in MACHINES[target].services]


@pytest.mark.parametrize(
    ("name", "node", "value", "word"),
    [
        ("loss", "gw-a", None, "a whole number from 1 to 100"),
        ("loss", "gw-a", "0", "a whole number from 1 to 100"),
        ("loss", "gw-a", "101", "a whole number from 1 to 100"),
        ("loss", "gw-a", "5%", "a whole number from 1 to 100"),
        ("one-way-cut", "gw-a", "up", "in, out"),
        ("power-cut", "gw-a", "5", "takes no value"),
        ("clock-jump", "gw-a", "+2h", r"\+1h, -1h"),
        ("partition", "gw-a", "worker-1", "orchestrators"),
        ("partition", "gw-a", "gw-a", "between two"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_what_is_allowed(
    name: str, node: str, value: str | None, word: str
) -> None:
    with pytest.raises(Usage, match=word):
        faults.check_value(faults.find(name, node), node, value)


@pytest.mark.parametrize(("name", "node"), [("nat-remap", "gw-a"), ("etcd-kill", "orch-1"), ("loss", "all")])
def test_a_fault_that_can_not_strike_there_says_where_it_can(name: str, node: str) -> None:
    with pytest.raises(NotFound, match=faults.FAULTS[name].targets[0]):
        faults.find(name, node)


def test_tunnels_run_over_the_underlay_only() -> None:
    assert fault_links.tunnel_ends(MACHINES["gw-a"]) == ["gw-a.under0"]
    assert fault_links.tunnel_ends(MACHINES["edge-1"]) == ["edge-1.nat-a0", "edge-1.nat-b0"]


def test_a_filter_has_a_chain_for_each_port_and_way_and_a_name_of_its_own() -> None:
    text = fault_links.filter_text("loss_gw_a_5", fault_links.filters(["gw-a.under0", "nat-a.in0"], "drop"))
    assert [text.count(f"type filter hook {hook} device") for hook in ("ingress", "egress")] == [2, 2]
    assert 'device "gw-a.under0"' in text
    names = {fault_links.filter_name("one-way-cut", "gw-a", way) for way in ("in", "out")}
    assert names == {"one_way_cut_gw_a_in", "one_way_cut_gw_a_out"}
