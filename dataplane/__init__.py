"""The kernel of one machine: links, addresses, routes, rules, WireGuard, nftables, sysctls, probes.

Desired and actual state are plain values (:mod:`dataplane.model`); :mod:`dataplane.diff` compares them without IO; the
other modules are adapters that read the kernel and perform what the comparison asks for.
"""
