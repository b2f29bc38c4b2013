"""The lab: a small network of namespaces in which the real daemons fail over for real.

A *machine* of the lab is one process tree in network, process, mount, host-name and IPC namespaces of its own. The
machines are wired by bridges inside one more namespace, the *fabric*. Nothing is created in the network namespace that
the lab is started from. `topology` says what there is, `world` makes and removes it, `faults` breaks it, `probes`
counts packets, `checks` and `report` judge and tell.
"""
