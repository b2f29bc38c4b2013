"""Tests of the core: no server, no root, no clock."""
