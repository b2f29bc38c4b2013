"""Fixtures: the gateway's BIRD (real and fake), and a client of it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from birdctl.apply import Applier
from birdctl.client import BirdClient
from birdctl.commands import Bird
from tests.contract.bird.gateways import FakeGateway, Gateway, LoopClock, RealGateway, until_seen, until_up
from tests.contract.bird.pair import GATEWAY_SESSION, PROBES, Pair, missing


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket (108 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="bgplb-bird-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two namespaces with a link; no BIRD runs yet."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    pair = Pair()
    try:
        pair.up()
        yield pair
    finally:
        pair.down()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.root)])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    """A gateway's BIRD that runs and whose session is up."""
    if request.param == "fake":
        fake = FakeGateway(request.getfixturevalue("short_folder"))
        await fake.start()
        yield fake
        fake.thaw()
        await fake.kill()
        return
    machines: Pair = request.getfixturevalue("pair")
    machines.start("edge")
    real = RealGateway(machines)
    await real.start()
    client = BirdClient(real.socket_path, timeout_s=10)
    await until_up(Bird(client), GATEWAY_SESSION)
    await client.close()
    await until_seen(real, set(PROBES))
    yield real
    await real.close()


@pytest.fixture
async def bird(gateway: Gateway) -> AsyncIterator[Bird]:
    """Typed commands to the gateway, with a deadline that a busy machine keeps."""
    client = BirdClient(gateway.socket_path, timeout_s=10)
    yield Bird(client)
    await client.close()


@pytest.fixture
def applier(gateway: Gateway, bird: Bird) -> Applier:
    """What keeps the gateway equal to its files."""
    return Applier(
        bird, LoopClock(), config_file=gateway.config_file, announce_file=gateway.announce_file, settle_s=10.0
    )
