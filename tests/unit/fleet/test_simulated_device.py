"""A simulated device without a broker: requests, received chunks, and final states."""

import hashlib
import random
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.fleet.simulation.chunk_store import ChunkStore
from edgepack.fleet.simulation.port import Port
from edgepack.fleet.simulation.simulated_device import SimulatedDevice
from edgepack.wire import topics
from edgepack.wire.messages import decode, encode
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.orders import Desired, FileRef
from edgepack.wire.reports import Reported, ReportedModel
from edgepack.wire.transfers import Need
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.signing import KEY, read_messages, sign_with


class OneDevice:
    """A simulated device, a clock that is turned by hand, and a depot that answers its needs."""

    def __init__(
        self, bundle: ExampleBundle, chunks: ChunkStore, *, fail_rate: float = 0.0
    ) -> None:
        self.now_s = 1000.0
        self.because = ""
        self.states: list[str] = []
        self.needs: list[Need] = []
        self.listens: set[str] = set()
        self._bounds = _bounds(bundle)
        self.device = SimulatedDevice(
            device="sim-1",
            tenant="t",
            port=Port(
                publish=self._publish,
                subscribe=self.listens.add,
                unsubscribe=self.listens.discard,
                chunks=chunks,
            ),
            sign=sign_with(KEY),
            rng=random.Random(1),
            fail_rate=fail_rate,
            silent_rate=0.0,
            clock=lambda: self.now_s,
        )
        self.device.connected()

    def _publish(self, topic: str, payload: bytes, _qos: int, _is_retained: bool) -> None:
        if topic == topics.up("t", "sim-1", "need"):
            self.needs.append(decode(payload, Need))
        elif topic == topics.up("t", "sim-1", "reported"):
            batch, (content,) = read_messages(payload)
            assert batch is not None
            reported = decode(content, Reported).models.get("tiny", ReportedModel())
            self.because = reported.because
            if self.states[-1:] != [reported.state]:
                self.states.append(reported.state)

    def offer(self, desired: Desired) -> None:
        self.device.received(topics.desired("t", "sim-1"), encode(desired))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.device.tick()

    def missing(self) -> dict[str, frozenset[int]]:
        """Return the missing chunks of the newest need by file."""
        return {
            file.sha256: frozenset(read_missing(file, file.chunk_count))
            for file in self.needs[-1].files
        }

    def serve(self, *, spoilt: int | None = None) -> None:
        """Send the missing chunks of the newest need; every chunk with the index `spoilt` with
        other bytes.
        """
        for sha256, chunks in self.missing().items():
            content, starts = self._bounds[sha256]
            for index in sorted(chunks):
                piece = content[starts[index] : (*starts[1:], len(content))[index]]
                if index == spoilt:
                    piece = bytes(len(piece))
                payload = struct.pack(">I", index) + piece
                self.device.received(topics.broadcast("t", sha256), payload)


def _bounds(bundle: ExampleBundle) -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Return the content of each file, and the starts of its chunks, by digest."""
    found = {}
    for ref in (bundle.manifest, bundle.signature):
        found[ref.sha256] = (
            (bundle.folder / ref.path).read_bytes(),
            tuple(fixed_chunks(ref.size_bytes)),
        )
    manifest = decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())
    of_bundle = ((bundle.folder, entry) for entry in manifest.facts.files)
    of_variant = (
        (bundle.folder / "model" / manifest.variants[0].name, entry)
        for entry in manifest.variants[0].facts.files
    )
    for folder, entry in (*of_bundle, *of_variant):
        path = next(
            path for path in (folder / entry.path, bundle.folder / entry.path) if path.exists()
        )
        found[entry.sha256] = (path.read_bytes(), offsets(entry.chunks))
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> ExampleBundle:
    return make_bundle(tmp_path / "tiny", ec.generate_private_key(ec.SECP256R1()))


def test_a_bundle_is_asked_for_in_two_steps_and_commits_after_its_soak(
    bundle: ExampleBundle, tmp_path: Path
) -> None:
    it = OneDevice(bundle, ChunkStore(tmp_path))
    it.offer(bundle.desired(1, soak_s=2.0))
    it.pass_time(0.3)
    assert set(it.missing()) == {bundle.manifest.sha256, bundle.signature.sha256}
    it.serve()
    it.pass_time(0.3)
    assert bundle.manifest.sha256 not in it.missing()
    assert it.missing(), "nothing of the variant is asked for"
    it.serve()
    it.pass_time(0.5)
    assert it.device.state == "SOAKING"
    it.pass_time(2.0)
    assert it.states == ["IDLE", "DOWNLOADING", "VERIFIED", "PROBING", "SOAKING", "COMMITTED"]
    assert it.missing() == {}, "the last need says that nothing lacks"
    assert not [topic for topic in it.listens if topic.startswith("ep/1/t/b/")]


def test_a_chunk_with_other_bytes_is_dropped_and_asked_for_again(
    bundle: ExampleBundle, tmp_path: Path
) -> None:
    it = OneDevice(bundle, ChunkStore(tmp_path))
    it.offer(bundle.desired(1))
    it.pass_time(0.3)
    it.serve()
    it.pass_time(0.3)
    files = set(it.missing())
    it.serve(spoilt=0)
    it.pass_time(2.5)
    assert it.missing() == dict.fromkeys(files, frozenset({0}))
    assert it.device.state == "DOWNLOADING"
    it.serve()
    assert it.device.state == "VERIFIED"


def test_a_manifest_that_cannot_be_read_is_refused_and_nothing_more_is_asked_for(
    bundle: ExampleBundle, tmp_path: Path
) -> None:
    junk = b'{"schema_version": "9.9"}'
    ref = FileRef(path=MANIFEST_FILE, size_bytes=len(junk), sha256=hashlib.sha256(junk).hexdigest())
    order = replace(bundle.order(1), manifest=ref)
    desired = Desired(sequence=1, models={"tiny": order})
    it = OneDevice(bundle, ChunkStore(tmp_path))
    it.offer(desired)
    it.pass_time(0.3)
    it.device.received(topics.broadcast("t", ref.sha256), struct.pack(">I", 0) + junk)
    assert it.states == ["IDLE", "DOWNLOADING", "REJECTED"]
    assert it.because == (
        "manifest.json does not fit the format: Object missing required field `package_name`"
    )
    asked = len(it.needs)
    it.pass_time(5.0)
    assert len(it.needs) == asked


def test_a_device_that_was_told_to_fail_rolls_back_with_the_numbers(
    bundle: ExampleBundle, tmp_path: Path
) -> None:
    it = OneDevice(bundle, ChunkStore(tmp_path), fail_rate=1.0)
    it.offer(bundle.desired(1))
    for _ in range(2):
        it.pass_time(0.3)
        it.serve()
    it.pass_time(1.0)
    assert it.states[-2:] == ["PROBING", "ROLLED_BACK"]
    assert it.because == "golden outputs differ: nrmse 0.83 > 0.05 (simulated)"
