"""A broker that may read, drop, delay, replay and alter everything, in 1,000 random schedules.

Nothing is accepted that was not signed for that device, and once the broker is honest again the
device updates as if nothing had ever been.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from securesystemslib.signer import CryptoSigner

from edgepack.fleet.repository.lifetimes import DAY_S
from edgepack.wire.messages import MAX_SEQUENCE, Desired, encode
from tests.simulators.repository import MemoryCache, RepositoryWorld
from tests.simulators.trusting_device import TrustingDevice, wants, word
from tests.unit.trust.conftest import Shelf
from tests.unit.trust.test_attacks import sign_word

SCHEDULES, BATCHES, DELIVERIES = 1000, 4, 8
FOREIGN = CryptoSigner.generate_ecdsa()


@dataclass(frozen=True)
class History:
    """What was ever said in a fleet, and what of it was meant for this device.

    Attributes:
        world: The fleet, as it is at the end.
        said: Everything that went over the broker, by file; the director's words are `desired`.
        before: What the device had accepted before the broker fell.
        meant: The releases that the director ever ordered for this device.
        last: What it is to run at the end.
        number: Of the director's last word to it.
    """

    world: RepositoryWorld
    said: tuple[tuple[str, bytes], ...]
    before: dict[str, bytes]
    meant: frozenset[tuple[str, int]]
    last: Desired
    number: int


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, shelf: Shelf) -> History:
    folder = tmp_path_factory.mktemp("history")
    world = RepositoryWorld(folder / "tuf")
    said: dict[tuple[str, bytes], None] = {}

    def go_on(*words: tuple[str, Desired]) -> None:
        for device, desired in words:
            said["desired", word(world, device, desired)] = None
        said.update(dict.fromkeys(world.repository.messages().items()))
        world.now += DAY_S / 12

    cache = MemoryCache()
    world.publish(shelf.one)
    device = TrustingDevice(world, folder / "state", cache=cache)
    go_on(("cam-1", wants(shelf.one, sequence=5)), ("cam-2", wants(shelf.one, sequence=5)))
    device.hear_all(wants(shelf.one, sequence=5))
    assert device.installs == [("tiny", 1)]
    before = dict(cache)
    world.publish(shelf.two)
    go_on(("cam-2", wants(shelf.two, sequence=9)))
    world.rotate("timestamp")
    world.publish(shelf.other)
    go_on(("cam-2", wants(shelf.other, sequence=10)))
    world.repository.withdraw(shelf.other.ref)
    world.rotate("root")
    go_on(("cam-1", wants(shelf.two, sequence=6)))
    last = wants(shelf.two, sequence=7)
    go_on(("cam-1", last))
    return History(
        world=world,
        said=tuple(said),
        before=before,
        meant=frozenset({("tiny", 1), ("tiny", 2)}),
        last=last,
        number=7,
    )


def altered(rng: random.Random, content: bytes) -> bytes:
    """Bytes as a broker may change them."""
    match rng.randrange(5):
        case 0:
            return content[: rng.randrange(len(content))]
        case 1:
            at = rng.randrange(len(content))
            return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        case 2:
            return rng.randbytes(rng.randrange(200))
        case 3:
            document = msgspec.json.decode(content)
            document["signed"]["version"] = rng.choice([0, 1, 2**31, MAX_SEQUENCE, -1, "x"])
            return msgspec.json.encode(document)
        case _:
            document = msgspec.json.decode(content)
            document["signed"]["expires"] = "2099-01-01T00:00:00Z"
            document["signatures"] = document["signatures"] * rng.randrange(3)
            return msgspec.json.encode(document)


def forged(rng: random.Random, history: History, shelf: Shelf) -> bytes:
    """A word that nobody signed who may."""
    bundle = rng.choice([shelf.one, shelf.two, shelf.other, shelf.arm])
    sequence = rng.choice([6, 8, 2**32, MAX_SEQUENCE])
    desired = wants(bundle, sequence=sequence)
    if rng.random() < 0.5:
        return encode(desired)
    lives_s = rng.choice([-DAY_S, DAY_S])
    return sign_word(history.world, desired, FOREIGN, lives_s=lives_s)


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
                    device.hear("desired", forged(rng, history, shelf))
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
