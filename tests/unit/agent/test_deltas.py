"""A device makes chunks from old chunks and a delta; the delta is optional."""

from pathlib import Path

import pytest

from edgepack.agent.state.slots import Slots
from edgepack.bundle.deltas import DELTA_FOLDER, MAGIC, read_records
from edgepack.bundle.manifest import MANIFEST_FILE, FileEntry, decode_manifest
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

WEIGHT_BYTES = 256 * 256 * 4


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, releases: Releases) -> ExampleBundle:
    """Release one with a second weight that is nearly the same."""
    folder = tmp_path_factory.mktemp("tuned") / "bundle"
    return make_bundle(folder, releases.key, release=2, tuned_from=releases.one)


def delta_of(bundle: ExampleBundle) -> FileEntry:
    manifest = decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())
    (found,) = [it for it in manifest.files if it.path.startswith(f"{DELTA_FOLDER}/")]
    return found


def install(world: World, bundle: ExampleBundle) -> int:
    """Install a bundle; return the sent bytes."""
    sent = 0

    def count(_: int, chunk: bytes) -> bytes:
        nonlocal sent
        sent += len(chunk)
        return chunk

    world.link.hold(bundle)
    world.link.spoil = count
    world.updater.orders.offer(bundle.order(7))
    assert world.settle() == "COMMITTED", world.journal.because
    slot = world.state_dir / "slots" / bundle.ref.digest
    path = Path("model/cpu/model.onnx")
    assert (slot / path).read_bytes() == (bundle.folder / path).read_bytes()
    assert not (slot / DELTA_FOLDER).exists()
    return sent


def test_a_device_with_the_older_bundle_fetches_the_delta_instead(
    world: World, tuned: ExampleBundle
) -> None:
    sent = install(world, tuned)
    assert delta_of(tuned).size_bytes < sent < 0.75 * WEIGHT_BYTES
    asked = {file.sha256 for need in world.link.heard for file in need.files}
    assert delta_of(tuned).sha256 in asked


def test_a_device_without_it_asks_for_no_delta(fresh: World, tuned: ExampleBundle) -> None:
    assert install(fresh, tuned) > 2 * WEIGHT_BYTES
    asked = {file.sha256 for need in fresh.link.heard for file in need.files}
    assert delta_of(tuned).sha256 not in asked


def test_a_disk_without_room_for_the_delta_takes_the_chunks(
    world: World, tuned: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free_bytes(slots: Slots) -> int:
        """Return enough for the bundle's files, and afterwards too little for the delta."""
        is_reserved = (slots.folder(tuned.ref.digest) / "model").exists()
        return delta_of(tuned).size_bytes - 1 if is_reserved else 10**9

    monkeypatch.setattr(Slots, "free_bytes", free_bytes)
    assert install(world, tuned) > WEIGHT_BYTES
    asked = {file.sha256 for need in world.link.heard for file in need.files}
    assert delta_of(tuned).sha256 not in asked


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda content: content[: len(content) // 2],
        lambda content: MAGIC + b"?" * (len(content) - len(MAGIC)),
        lambda content: b"?" * len(content),
        lambda content: content[: len(content) - 500] + bytes(500),
    ],
)
def test_a_delta_that_gives_the_wrong_thing_costs_bytes_and_nothing_else(
    spoilt: object, world: World, releases: Releases, tmp_path: Path
) -> None:
    bundle = make_bundle(
        tmp_path / "bundle",
        releases.key,
        release=2,
        tuned_from=releases.one,
        spoil_delta=spoilt,  # type: ignore[arg-type]
    )
    install(world, bundle)


def test_an_older_chunk_that_has_rotted_is_not_built_upon(
    world: World, tuned: ExampleBundle, releases: Releases
) -> None:
    slot = world.state_dir / "slots" / releases.one.ref.digest / "model/cpu/model.onnx"
    content = bytearray(slot.read_bytes())
    content[-WEIGHT_BYTES // 2] ^= 1
    slot.write_bytes(content)
    install(world, tuned)


@pytest.mark.parametrize("cut_at", range(4, 64, 5))
def test_the_power_may_be_cut_at_any_moment(
    cut_at: int, world: World, tuned: ExampleBundle
) -> None:
    world.link.hold(tuned)
    world.updater.orders.offer(tuned.order(7))
    world.faults.moments, world.faults.cut_at = 0, cut_at
    assert world.settle_through_power_cuts() == "COMMITTED"
    slot = world.state_dir / "slots" / tuned.ref.digest
    path = Path("model/cpu/model.onnx")
    assert (slot / path).read_bytes() == (tuned.folder / path).read_bytes()
    assert not (slot / DELTA_FOLDER).exists()


def test_a_delta_names_chunks_of_both_bundles(tuned: ExampleBundle, releases: Releases) -> None:
    digests = [
        {
            entry.chunks.sha256[start : start + 32]
            for entry in decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes()).files
            for start in range(0, len(entry.chunks.sha256), 32)
        }
        for bundle in (releases.one, tuned)
    ]
    records = list(read_records(tuned.folder / delta_of(tuned).path))
    assert records
    for record in records:
        assert record.old in digests[0]
        assert record.new in digests[1] - digests[0]
