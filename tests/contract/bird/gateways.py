"""One gateway's BIRD, real or fake, behind the same handle."""

import asyncio
from ipaddress import ip_network
from pathlib import Path
from typing import Protocol

from birdctl.client import BirdClient
from birdctl.commands import Bird, Network
from birdctl.render import gateway_text
from tests.contract.bird.fake import FakeBird
from tests.contract.bird.pair import EDGE_SESSION, START_S, Pair, gateway_config


class LoopClock:
    """The event loop's own clock: real time, for tests against real servers."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Gateway(Protocol):
    """What the suite may do to the gateway's BIRD, whichever it is."""

    socket_path: Path
    config_file: Path
    announce_file: Path

    async def start(self) -> None:
        """Start it, its configuration being there already."""

    async def kill(self) -> None:
        """SIGKILL."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""

    async def seen_by_neighbour(self) -> frozenset[Network]:
        """What the edge has from this gateway now."""
        ...


class FakeGateway:
    """A `FakeBird` with the files of a gateway."""

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "bird.ctl"
        self.config_file = folder / "bird.conf"
        self.announce_file = folder / "announce.conf"
        self.config_file.write_text(gateway_text(gateway_config("fake0", self.announce_file)))
        self._bird = FakeBird(self.socket_path, self.config_file)

    async def start(self) -> None:
        self.socket_path.unlink(missing_ok=True)
        await self._bird.start()

    async def kill(self) -> None:
        await self._bird.kill()
        await asyncio.sleep(0.01)  # client and fake share a loop: let the client see that the connection ended

    def freeze(self) -> None:
        self._bird.freeze()

    def thaw(self) -> None:
        self._bird.thaw()

    async def seen_by_neighbour(self) -> frozenset[Network]:
        return frozenset(ip_network(prefix) for prefix in self._bird.exported())


class RealGateway:
    """The gateway of a `Pair`; the edge beside it is the neighbour."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.socket_path = pair.socket_path("gw")
        self.config_file = pair.config_file("gw")
        self.announce_file = pair.announce_file
        self._edge = Bird(BirdClient(pair.socket_path("edge"), timeout_s=10))

    async def start(self) -> None:
        self._pair.start("gw")

    async def kill(self) -> None:
        self._pair.kill("gw")

    def freeze(self) -> None:
        self._pair.freeze("gw")

    def thaw(self) -> None:
        self._pair.thaw("gw")

    async def seen_by_neighbour(self) -> frozenset[Network]:
        return frozenset(await self._edge.routes(EDGE_SESSION))

    async def close(self) -> None:
        await self._edge.client.close()


async def until_seen(gateway: Gateway, present: set[Network], absent: set[Network] | None = None) -> None:
    """Wait until the neighbour has all of `present` and nothing of `absent`. Raises TimeoutError."""
    async with asyncio.timeout(START_S):
        while True:
            seen = await gateway.seen_by_neighbour()
            if present <= seen and not (absent or set()) & seen:
                return
            await asyncio.sleep(0.01)


def same_moment(one: str, other: str) -> bool:
    """Whether two of BIRD's times of day are of one instant: it reckons each anew from two clocks, to a millisecond."""
    clock = [[float(part) for part in text[-12:].split(":")] for text in (one, other)]
    seconds = [hour * 3600 + minute * 60 + second for hour, minute, second in clock]
    return abs(seconds[0] - seconds[1]) <= 0.01


async def until_up(bird: Bird, session: str) -> str:
    """Wait until a BGP session is Established; its `since`. Raises TimeoutError."""
    async with asyncio.timeout(START_S):
        while True:
            for row in await bird.protocols():
                if row.name == session and row.up:
                    return row.since
            await asyncio.sleep(0.05)
