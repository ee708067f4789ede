"""View of a hostile broker on messages, and its alterations and forgeries."""

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
from securesystemslib.signer import CryptoSigner

from edgepack.fleet.repository.lifetimes import DAY_S
from edgepack.wire.messages import encode
from edgepack.wire.orders import MAX_SEQUENCE, Desired
from tests.simulators.bundles import ExampleBundle
from tests.simulators.repository import MemoryCache, RepositoryWorld
from tests.simulators.trusting_device import TrustingDevice, sign_word, wants, word

_FOREIGN = CryptoSigner.generate_ecdsa()


@dataclass(frozen=True)
class History:
    """All messages of a fleet, with the messages for this device.

    Attributes:
        world: The fleet at the end.
        said: Everything that went over the broker, by file; the director's words are `desired`.
        before: The device's accepted messages before the attack.
        meant: The releases that the director ever ordered for this device.
        last: The device's final order.
        number: Number of the director's last order to the device.
    """

    world: RepositoryWorld
    said: tuple[tuple[str, bytes], ...]
    before: dict[str, bytes]
    meant: frozenset[tuple[str, int]]
    last: Desired
    number: int


def tell_history(
    folder: Path, one: ExampleBundle, two: ExampleBundle, other: ExampleBundle
) -> History:
    """Make a fleet with a long history; cam-1 runs release one, and is to run two at the end.

    Args:
        folder: For the fleet's files.
        one, two: Two releases of a model.
        other: Of another model, which only cam-2 ever shall run, and which is withdrawn.
    """
    world = RepositoryWorld(folder / "tuf")
    said: dict[tuple[str, bytes], None] = {}

    def go_on(*words: tuple[str, Desired]) -> None:
        for device, desired in words:
            said["desired", word(world, device, desired)] = None
        said.update(dict.fromkeys(world.repository.messages().items()))
        world.now += DAY_S / 12

    cache = MemoryCache()
    world.publish(one)
    device = TrustingDevice(world, folder / "state", cache=cache)
    go_on(("cam-1", wants(one, sequence=5)), ("cam-2", wants(one, sequence=5)))
    device.hear_all(wants(one, sequence=5))
    assert device.installs == [("tiny", 1)]
    before = dict(cache)
    world.publish(two)
    go_on(("cam-2", wants(two, sequence=9)))
    world.rotate("timestamp")
    world.publish(other)
    go_on(("cam-2", wants(other, sequence=10)))
    world.repository.withdraw(other.ref)
    world.rotate("root")
    go_on(("cam-1", wants(two, sequence=6)))
    last = wants(two, sequence=7)
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
    """Return bytes with a broker's alterations."""
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


def forged(rng: random.Random, world: RepositoryWorld, *bundles: ExampleBundle) -> bytes:
    """Return an order without a valid signature, about these bundles."""
    bundle = rng.choice(bundles)
    sequence = rng.choice([6, 8, 2**32, MAX_SEQUENCE])
    desired = wants(bundle, sequence=sequence)
    if rng.random() < 0.5:
        return encode(desired)
    lives_s = rng.choice([-DAY_S, DAY_S])
    return sign_word(world, desired, _FOREIGN, lives_s=lives_s)
