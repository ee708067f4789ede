"""The whole agent behind a broker that may do anything, in random schedules.

Beside metadata and the director's word (`test_man_in_the_middle`) the broker has every chunk of
every bundle, of other devices and models too: it forges, truncates and swaps them, and brings them
in any order on any topic. What the device runs is at all times whole, and what was signed for it.
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from edgepack.agent.broker.inbox import Arrived, Connected
from edgepack.agent.update.device_trust import DeviceTrust
from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.trust import TrustPolicy
from edgepack.fleet.controller.metadata import MetadataKeeper
from edgepack.wire import topics
from edgepack.wire.coded import WINDOW_CHUNKS, pack_coded
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.orders import RunModel
from tests.simulators.bundles import ExampleBundle
from tests.simulators.hostile_broker import History, altered, forged, tell_history
from tests.simulators.repository import MemoryCache, read_manifest
from tests.simulators.trusting_device import TENANT, word
from tests.simulators.world import World
from tests.unit.agent.test_daemon import Daemon, MemoryPublisher, make_daemon
from tests.unit.trust.conftest import Shelf

SCHEDULES = int(os.environ.get("EDGEPACK_FUZZ_ROUNDS", "100"))
BATCHES, STEPS = 2, 40
DEVICE = "cam-1"
Frame = tuple[str, int, bytes]
"""File, index and content of a chunk."""


Coded = tuple[str, dict[int, bytes]]
"""Several chunks of a file, which go out as one."""


@dataclass(frozen=True)
class Scene:
    """What each schedule begins with.

    Attributes:
        history: What was said in the fleet.
        shelf: The bundles.
        state: State folder of a device that runs release one.
        frames: Every chunk of every bundle.
    """

    history: History
    shelf: Shelf
    state: Path
    frames: tuple[Frame, ...]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, shelf: Shelf) -> Scene:
    folder = tmp_path_factory.mktemp("scene")
    history = tell_history(folder / "history", shelf.one, shelf.two, shelf.other)
    (folder / "state").mkdir()
    world = World(state_dir=folder / "state", keys=(shelf.key.public_key(),), now=history.world.now)
    world.link.hold(shelf.one)
    world.updater.orders.offer(shelf.one.order(5))
    assert world.settle() == "COMMITTED"
    bundles = (shelf.one, shelf.two, shelf.other, shelf.arm)
    frames = tuple(frame for bundle in bundles for frame in _frames(bundle))
    return Scene(history=history, shelf=shelf, state=folder / "state", frames=frames)


def _frames(bundle: ExampleBundle) -> Iterator[Frame]:
    starts = {
        ref.path: (ref.sha256, (*fixed_chunks(ref.size_bytes), ref.size_bytes))
        for ref in (bundle.manifest, bundle.signature)
    }
    for entry in read_manifest(bundle).files:
        starts[entry.path] = (entry.sha256, (*offsets(entry.chunks), entry.size_bytes))
    for path, (sha256, bounds) in starts.items():
        content = (bundle.folder / path).read_bytes()
        for index in range(len(bounds) - 1):
            yield sha256, index, content[bounds[index] : bounds[index + 1]]


class Besieged:
    """A device whose broker is in the wrong hands; its state lies in `folder`."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        shutil.copytree(scene.state, folder)
        self.history = scene.history
        self.world = World(
            state_dir=folder,
            keys=(scene.shelf.key.public_key(),),
            now=scene.history.world.now,
        )
        self.cache = MemoryCache(scene.history.before)
        self.solved = 0
        self.daemon = self.restart()

    def restart(self) -> Daemon:
        """A new agent process on the same disk."""
        self.world.restart()
        trust = DeviceTrust(
            self.history.world.root,
            self.cache,
            tenant=TENANT,
            device=DEVICE,
            arch="x86_64",
            wall=lambda: self.world.now,
        )
        self.trust = trust
        self.daemon = make_daemon(self.world, MemoryPublisher(), trust)
        return self.daemon

    def hear(self, topic: str, payload: bytes) -> None:
        self.daemon.turn(Arrived(topic=topic, payload=payload))

    def hear_file(self, name: str, content: bytes, device: str = DEVICE) -> None:
        is_word = name == "desired"
        self.hear(
            topics.desired(TENANT, device) if is_word else topics.metadata(TENANT, name), content
        )

    def asked(self, scene: Scene) -> list[Frame]:
        """The chunks that it asked for since it was looked at last."""
        needs, self.world.link.needs = self.world.link.needs, []
        known = {(sha256, index): content for sha256, index, content in scene.frames}
        counts = {sha256: 0 for sha256, _, _ in scene.frames}
        for sha256, _, _ in scene.frames:
            counts[sha256] += 1
        return [
            (file.sha256, index, known[file.sha256, index])
            for need in needs
            for file in need.files
            for index in read_missing(file, counts[file.sha256])
        ]

    def check(self, scene: Scene) -> None:
        """What it runs is whole and was meant for it; of nothing else is there a slot."""
        shelf, slots = scene.shelf, self.world.state_dir / "slots"
        meant = {shelf.one.ref.digest, shelf.two.ref.digest}
        pointer = self.world.pointer
        assert pointer is not None
        assert pointer.digest in meant
        assert {path.name for path in slots.iterdir()} <= meant
        TrustPolicy(keys=(shelf.key.public_key(),)).check_folder(
            slots / pointer.digest, complete=False
        )
        assert self.trust.heard_sequence <= scene.history.number

    def update_honestly(self, scene: Scene) -> None:
        """The broker is honest again: the controller answers what the device reports."""
        world, two = scene.history.world, scene.shelf.two.ref.digest
        keeper = MetadataKeeper(world.repository, TENANT, publish=self.hear, send=self.hear)
        self.daemon.turn(Connected())
        keeper.turn(self.world.now)
        for _ in range(300):
            keeper.answer(DEVICE, self.trust.reported, self.world.now)
            if self.trust.heard_sequence < scene.history.number or not self.has_heard(two):
                self.hear_file("desired", word(world, DEVICE, scene.history.last))
            for sha256, index, content in self.asked(scene):
                self.hear(topics.broadcast(TENANT, sha256), index.to_bytes(4) + content)
            self.daemon.turn()
            pointer = self.world.pointer
            if pointer and pointer.digest == two and self.world.updater.is_at_rest:
                return
            self.world.now += 1.0
        journal = self.world.journal
        raise AssertionError((journal.state, journal.because, self.trust.trouble))

    def has_heard(self, digest: str) -> bool:
        """Whether the update is about that bundle."""
        offer = self.world.journal.offer
        return isinstance(offer, RunModel) and offer.bundle.digest == digest


def spoilt(rng: random.Random, frame: Frame, other: Frame) -> Frame:
    """A chunk as a broker may forge, truncate or swap it."""
    sha256, index, content = frame
    match rng.randrange(6):
        case 0:
            return sha256, index, content[: rng.randrange(len(content))]
        case 1:
            at = rng.randrange(len(content))
            flipped = bytes([content[at] ^ (1 << rng.randrange(8))])
            return sha256, index, content[:at] + flipped + content[at + 1 :]
        case 2:
            return sha256, rng.choice([index + 1, 2**31, 2**32 - 1, 0]), content
        case 3:
            return sha256, index, other[2]
        case 4:
            return other[0], other[1], content
        case _:
            return sha256, index, content + rng.randbytes(rng.choice([1, 200_000]))


def coded_with(rng: random.Random, frame: Frame, scene: Scene) -> Coded:
    """A chunk with others of its file, of which the device has some."""
    sha256, index, content = frame
    near = {
        other: more
        for one, other, more in scene.frames
        if one == sha256 and other != index and abs(other - index) < WINDOW_CHUNKS // 2
    }
    chosen = rng.sample(sorted(near), min(len(near), rng.randint(1, 3)))
    return sha256, {index: content} | {other: near[other] for other in chosen}


def spoilt_coded(rng: random.Random, sha256: str, payload: bytes) -> tuple[str, bytes]:
    """A coded message as a broker may forge, truncate or swap it."""
    match rng.randrange(5):
        case 0:
            return sha256, payload[: rng.randrange(len(payload))]
        case 1:
            at = rng.randrange(min(len(payload), rng.choice([9, 12, len(payload)])))
            flipped = bytes([payload[at] ^ (1 << rng.randrange(8))])
            return sha256, payload[:at] + flipped + payload[at + 1 :]
        case 2:
            return sha256, payload[:8] + rng.randbytes(rng.choice([1, 65])) + payload[9:]
        case 3:
            return sha256[::-1], payload
        case _:
            return sha256, payload + rng.randbytes(rng.choice([1, 200_000]))


def send_coded(rng: random.Random, device: Besieged, scene: Scene, frame: Frame) -> None:
    """Chunks as one message; now and then that is a lie."""
    sha256, contents = coded_with(rng, frame, scene)
    payload = pack_coded(rng.randrange(2**32), contents)
    if rng.random() < 0.3:
        sha256, payload = spoilt_coded(rng, sha256, payload)
    before = device.world.updater.progress
    device.hear(topics.coded(TENANT, sha256), payload)
    device.solved += device.world.updater.progress > before


def send_everything(rng: random.Random, device: Besieged, history: History) -> None:
    """Send the newest metadata, and every order in any order."""
    for file, text in history.world.repository.messages().items():
        device.hear_file(file, text)
    words = [text for file, text in history.said if file == "desired"]
    for text in rng.sample(words, len(words)):
        device.hear_file("desired", text)


def step(rng: random.Random, device: Besieged, scene: Scene) -> None:
    """One thing that the broker does."""
    history, shelf = scene.history, scene.shelf
    name, content = rng.choice(history.said)
    frame, other = rng.choice(scene.frames), rng.choice(scene.frames)
    ways = (
        partial(topics.broadcast, TENANT),
        partial(topics.repair, TENANT, DEVICE),
        partial(topics.repair, TENANT, "cam-2"),
    )
    on = rng.choice(ways)
    match rng.randrange(13):
        case 0:
            bundles = (shelf.one, shelf.two, shelf.other, shelf.arm)
            device.hear_file("desired", forged(rng, history.world, *bundles))
        case 1:
            device.hear_file(name, altered(rng, content))
        case 2:
            device.hear_file(name, content, device="cam-2")
        case 3 | 4:
            device.hear_file(name, content)
        case 5:
            send_everything(rng, device, history)
        case 6:
            device.restart()
        case 7:
            device.world.now += rng.choice([0.1, 5.0, 120.0])
            device.daemon.turn(*([Connected()] if rng.random() < 0.5 else []))
        case 8:
            device.hear(on(frame[0]), rng.randbytes(rng.randrange(40)))
        case 9:
            sha256, index, body = spoilt(rng, frame, other)
            device.hear(on(sha256), index.to_bytes(4) + body)
        case 10:
            send_coded(rng, device, scene, frame)
        case _:
            device.world.now += 2.0
            device.daemon.turn()
            asked = device.asked(scene)
            rng.shuffle(asked)
            for wanted in asked[: rng.choice([1, 5, len(asked)])]:
                if rng.random() < 0.3:
                    send_coded(rng, device, scene, wanted)
                    continue
                bad = rng.random() < 0.3
                sha256, index, body = spoilt(rng, wanted, other) if bad else wanted
                for _ in range(rng.choice([1, 1, 2])):
                    device.hear(on(sha256), index.to_bytes(4) + body)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_a_device_runs_is_whole_and_was_signed_for_it(
    batch: int, scene: Scene, tmp_path: Path
) -> None:
    began = updated = solved = 0
    for seed in range(batch * SCHEDULES // BATCHES, (batch + 1) * SCHEDULES // BATCHES):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        device = Besieged(scene, folder)
        if seed % 2:  # Half of the schedules begin with a transfer, which few others get to.
            send_everything(rng, device, scene.history)
        for _ in range(rng.randrange(1, STEPS)):
            step(rng, device, scene)
        device.check(scene)
        solved += device.solved
        began += scene.shelf.two.ref.digest in {path.name for path in (folder / "slots").iterdir()}
        pointer = device.world.pointer
        updated += pointer is not None and pointer.digest == scene.shelf.two.ref.digest
        try:
            device.update_honestly(scene)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        device.check(scene)
        shutil.rmtree(folder)
    assert began, "no transfer began: the schedules show nothing"
    assert updated, "no schedule let an update through"
    assert solved, "no coded message gave anything"
