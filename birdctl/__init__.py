"""BIRD 2's control socket and configuration: protocol, client, typed commands, rendering, applying.

Reading order: `replies` (what the numbers mean), `protocol` (bytes to replies, no IO), `client` (the
socket and its deadlines), `commands` (typed questions and orders), `render` (configuration text),
`apply` (files first, then BIRD, then read back).
"""
