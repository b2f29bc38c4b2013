"""A thread with an event loop of asyncio's own beside the daemon's, for what that one, uvloop's, can't do: pyroute2's
sockets, and programs with a umask (docs/decisions/0028). Nothing of a move that is in a hurry comes here.
"""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")

_SWITCH_S = 0.0005
"""So long may work over there keep the daemon's own thread waiting for the interpreter, which can be at each event and
each call into the kernel. Python's own 5 ms are a whole failover's decision; pyroute2 computes for longer than that."""


async def aside(work: Coroutine[Any, Any, _T]) -> _T:
    """Do it over there; it is cancelled there when the caller is. What it made belongs to that loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    sys.setswitchinterval(_SWITCH_S)
    loop = asyncio.SelectorEventLoop()
    threading.Thread(target=loop.run_forever, name="aside", daemon=True).start()
    return loop
