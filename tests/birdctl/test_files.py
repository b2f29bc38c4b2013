"""Files that BIRD reads, on a file system that takes nothing."""

from pathlib import Path

import pytest

from birdctl.apply import Applier
from birdctl.client import BirdClient
from birdctl.commands import Bird
from birdctl.errors import BirdFileUnwritable
from birdctl.render import Announcements
from orchestrator.clock import BootClock


async def test_a_file_that_can_not_be_written_is_named_and_bird_is_not_asked(tmp_path: Path) -> None:
    config, announce = tmp_path / "gone" / "bird.conf", tmp_path / "gone" / "announce.conf"
    nobody = Bird(BirdClient(tmp_path / "no-bird.ctl", timeout_s=0.5))
    applier = Applier(nobody, BootClock(), config_file=config, announce_file=announce)
    with pytest.raises(BirdFileUnwritable, match=r"bird\.conf: can.t be written"):
        await applier.configure("router id 10.77.0.1;")
    with pytest.raises(BirdFileUnwritable, match=r"announce\.conf: can.t be written"):
        await applier.announce(Announcements(()))
