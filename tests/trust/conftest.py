"""A machine of its own for each test that asks for one."""

from tests.wiring.conftest import box, other

__all__ = ["box", "other"]
