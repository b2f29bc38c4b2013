"""Being called when a socket has something to read."""

import asyncio
import select
from collections.abc import Callable

from dataplane.errors import KernelRefused


class Readable:
    """`on_readable` is called from the event loop for as long as there is something to read, or an error to fetch.

    The loop watches an epoll instance with the socket in it, not the socket: of one that has an error, as a netlink
    socket after an overrun has, uvloop would never tell again (docs/decisions/0028).
    """

    def __init__(self, descriptor: int, on_readable: Callable[[], None]) -> None:
        """Raises KernelRefused, as where no descriptor is left for it: who opened the socket then closes it."""
        try:
            self._epoll = select.epoll()
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError as error:
            raise KernelRefused(error.errno or 0, "to watch a socket") from error
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), on_readable)

    def close(self) -> None:
        """Stop listening; to be done before the socket is closed."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()
