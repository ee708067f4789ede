"""A broker that may read, drop, delay, replay and alter everything, in random schedules.

Nothing is accepted that was not signed for that device, and once the broker is honest again the
device updates as if nothing had ever been.
"""

import os
import random
from pathlib import Path

import pytest

from tests.simulators.hostile_broker import History, altered, forged, tell_history
from tests.simulators.repository import MemoryCache
from tests.simulators.trusting_device import TrustingDevice
from tests.unit.trust.conftest import Shelf

SCHEDULES = int(os.environ.get("EDGEPACK_FUZZ_ROUNDS", "100"))
BATCHES, DELIVERIES = 2, 8


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, shelf: Shelf) -> History:
    return tell_history(tmp_path_factory.mktemp("history"), shelf.one, shelf.two, shelf.other)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nothing_is_accepted_that_was_not_signed_for_that_device(
    batch: int, history: History, shelf: Shelf, tmp_path: Path
) -> None:
    accepted = 0
    for seed in range(batch * SCHEDULES // BATCHES, (batch + 1) * SCHEDULES // BATCHES):
        rng = random.Random(seed)
        cache = MemoryCache(history.before)
        device = TrustingDevice(history.world, tmp_path / "state", cache=cache)
        for _ in range(rng.randrange(1, DELIVERIES)):
            name, content = rng.choice(history.said)
            match rng.randrange(7):
                case 0:
                    device.hear(
                        "desired",
                        forged(rng, history.world, shelf.one, shelf.two, shelf.other, shelf.arm),
                    )
                case 1 | 2:
                    device.hear(name, altered(rng, content))
                case 3:
                    device.restart()
                case 4:
                    device.hear_metadata()
                case _:
                    device.hear(name, content)
        assert set(device.installs) <= history.meant, seed
        assert device.trust.heard_sequence <= history.number, seed
        accepted += len(device.installs)
        # The broker is honest again.
        device.hear_all(history.last)
        assert device.installs[-1] == ("tiny", 2), (seed, device.dropped, device.trust.trouble)
        assert device.trust.trouble == "", seed
    assert accepted, "no schedule let anything through: they show nothing"
