"""Chunks in any order, spoilt, twice, or not at all; and times of the device's requests."""

import hashlib
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.agent.state.slots import Slots
from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.manifest_download import ManifestDownload
from edgepack.agent.transfer.need_scheduler import MAX_QUIET_S, NeedScheduler
from edgepack.bundle.manifest import FileEntry, decode_manifest
from edgepack.wire.messages import MAX_MESSAGE_BYTES, encode
from edgepack.wire.orders import FileRef
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases


def model_entry(releases: Releases) -> FileEntry:
    manifest = decode_manifest((releases.two.folder / "manifest.json").read_bytes())
    return manifest.variant("cpu").facts.files[0]


def cut(releases: Releases, entry: FileEntry) -> list[bytes]:
    content = (releases.two.folder / entry.path).read_bytes()
    chunks = []
    for size in entry.chunks.sizes:
        chunks.append(content[:size])
        content = content[size:]
    return chunks


def open_download(folder: Path, releases: Releases) -> Download:
    slots = Slots(folder)
    download = Download(slots, releases.two.ref.digest, [model_entry(releases)])
    download.reserve()
    download.resume(check=False)
    return download


@settings(max_examples=20)
@given(data=st.data())
def test_chunks_in_any_order_and_number_make_the_file(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, releases: Releases
) -> None:
    entry = model_entry(releases)
    chunks = cut(releases, entry)
    order = data.draw(st.permutations([*range(len(chunks)), 0, 1]))
    folder = tmp_path_factory.mktemp("slots")
    download = open_download(folder, releases)
    seen: set[int] = set()
    for index in order:
        spoilt = bytes([chunks[index][0] ^ 1]) + chunks[index][1:]
        expected = "duplicate" if index in seen else "bad"
        assert download.accept(entry.sha256, index, spoilt) == expected
        expected = "duplicate" if index in seen else "new"
        assert download.accept(entry.sha256, index, chunks[index]) == expected
        seen.add(index)
    assert download.missing() == ()
    assert download.progress == 1.0
    download.finish()
    path = folder / "slots" / releases.two.ref.digest / entry.path
    assert path.read_bytes() == (releases.two.folder / entry.path).read_bytes()


def test_a_chunk_of_no_file_or_place_is_unwanted(tmp_path: Path, releases: Releases) -> None:
    download = open_download(tmp_path, releases)
    assert download.accept("0" * 64, 0, b"x") == "unwanted"
    assert download.accept(model_entry(releases).sha256, 2**31, b"x") == "unwanted"
    download.close()


def test_of_a_file_that_is_gone_nothing_is_there_whatever_the_note_says(
    tmp_path: Path, releases: Releases
) -> None:
    entry = model_entry(releases)
    chunks = cut(releases, entry)
    for is_gone in (False, True):
        download = open_download(tmp_path, releases)
        download.accept(entry.sha256, 0, chunks[0])
        download.note()
        download.close()
        if is_gone:
            (tmp_path / "slots" / releases.two.ref.digest / entry.path).unlink()
        again = open_download(tmp_path, releases)
        (missing,) = again.missing()
        assert missing.chunks == tuple(range(0 if is_gone else 1, len(chunks)))
        again.close()


def test_the_same_file_in_two_variants_is_fetched_once(world: World, releases: Releases) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    slot = world.state_dir / "slots" / releases.two.ref.digest / "model"
    one = (slot / "cpu" / "model.onnx").read_bytes()
    assert one == (slot / "cpu-vnni" / "model.onnx").read_bytes()


def test_an_unchanged_tensor_is_taken_from_the_older_slot(world: World, releases: Releases) -> None:
    asked: list[int] = []

    def note(_index: int, content: bytes) -> bytes:
        asked.append(len(content))
        return content

    world.link.spoil = note
    world.updater.orders.offer(releases.three.order(2))
    assert world.settle() == "COMMITTED"
    model_bytes = (releases.three.folder / "model" / "cpu" / "model.onnx").stat().st_size
    assert sum(asked) < 0.6 * model_bytes


def test_hooks_of_a_bundle_are_executable_in_the_slot(world: World, releases: Releases) -> None:
    world.updater.orders.offer(releases.hooked.order(2))
    assert world.settle() == "COMMITTED"
    slot = world.state_dir / "slots" / releases.hooked.ref.digest
    assert (slot / "hooks" / "staged.after.d" / "10-x").stat().st_mode & 0o777 == 0o755
    assert (slot / "model" / "cpu" / "model.onnx").stat().st_mode & 0o777 == 0o644


def test_a_head_that_is_not_the_right_one_is_fetched_again() -> None:
    content = bytes(range(256)) * 300

    sha256 = hashlib.sha256(content).hexdigest()
    ref = FileRef(path="manifest.json", size_bytes=len(content), sha256=sha256)
    download = ManifestDownload([ref])
    assert download.accept(sha256, 0, bytes(65536)) == "new"
    assert download.accept(sha256, 0, content[:65536]) == "duplicate"
    assert download.accept(sha256, 1, b"short") == "bad"
    assert download.accept(sha256, 1, content[65536:]) == "bad"  # The first one was a lie.
    assert download.missing() == (MissingChunks(sha256=sha256, chunk_count=2, chunks=(0, 1)),)
    assert download.accept(sha256, 1, content[65536:]) == "new"
    assert download.accept(sha256, 0, content[:65536]) == "new"
    assert download.content(ref) == content
    assert download.accept(sha256, 7, b"x") == "unwanted"


def test_no_need_is_longer_than_a_broker_lets_pass() -> None:
    rng = random.Random(3)
    missing = tuple(
        MissingChunks(
            sha256=f"{number:064x}",
            chunk_count=100_000,
            chunks=tuple(sorted(rng.sample(range(100_000), 50_000))),
        )
        for number in range(12)
    )
    needs = NeedScheduler(0.0, rng).ask("0" * 64, missing, 0.0)
    assert len(needs) > 1
    assert all(len(encode(need)) <= MAX_MESSAGE_BYTES for need in needs)
    assert [file.sha256 for need in needs for file in need.files] == [m.sha256 for m in missing]


MISSING = (MissingChunks(sha256="0" * 64, chunk_count=10, chunks=(1, 2, 3)),)


def test_a_device_that_gets_no_answer_asks_ever_more_seldom_and_does_not_cry_loss() -> None:
    scheduler = NeedScheduler(0.0, random.Random(1))
    waits = []
    now = scheduler.due_at
    for _ in range(12):
        (need,) = scheduler.ask("0" * 64, MISSING, now)
        assert need.lost == 0
        waits.append(scheduler.due_at - now)
        now = scheduler.due_at
    assert waits[0] < 2
    assert all(later > earlier / 1.5 for earlier, later in pairwise(waits))
    assert MAX_QUIET_S <= waits[-1] <= 1.5 * MAX_QUIET_S


def test_a_device_waits_for_the_end_of_a_pass_and_then_says_what_was_lost() -> None:
    scheduler = NeedScheduler(0.0, random.Random(1))
    scheduler.ask("0" * 64, MISSING, scheduler.due_at)
    scheduler.note_chunk(5.0, is_new=True)
    scheduler.note_chunk(5.5, is_new=False)
    assert 6.5 <= scheduler.due_at <= 7.0
    (need,) = scheduler.ask("0" * 64, MISSING, 7.0)
    assert (need.round, need.received, need.lost) == (2, 1, 3)


def test_a_device_says_how_far_it_is_as_soon_as_half_as_much_again_came() -> None:
    scheduler = NeedScheduler(0.0, random.Random(1))
    scheduler.ask("0" * 64, MISSING, 0.0)
    told_at, came = [], 0
    while came < 1000:
        came += 1
        scheduler.note_chunk(0.001, is_new=True)
        if scheduler.due_at <= 0.001:
            assert scheduler.is_under_way
            scheduler.ask("0" * 64, MISSING, 0.001)
            told_at.append(came)
    assert told_at[0] <= 6, "the first word opens the window"
    assert all(later <= 1.5 * earlier + 6 for earlier, later in pairwise(told_at))
    assert len(told_at) < 20, "words cost a fleet something, too"


def test_a_device_asks_anew_when_the_broker_is_back() -> None:
    scheduler = NeedScheduler(0.0, random.Random(1))
    for now in (1.0, 10.0, 50.0):
        scheduler.ask("0" * 64, MISSING, now)
    scheduler.note_connected(60.0)
    assert scheduler.due_at <= 60.2
    (need,) = scheduler.ask("0" * 64, MISSING, 60.2)
    assert need.lost == 0


def test_devices_of_a_wave_do_not_ask_at_the_same_moment() -> None:
    first = {NeedScheduler(0.0, random.Random(seed)).due_at for seed in range(20)}
    assert len(first) == 20
    assert max(first) <= 0.1


def test_the_note_of_a_download_is_not_believed_when_it_is_damaged(
    tmp_path: Path, releases: Releases
) -> None:
    slots = Slots(tmp_path)
    slots.write_held("0" * 64, {"x": b"\x01"})
    assert slots.read_held("0" * 64) == {"x": b"\x01"}
    (tmp_path / "downloads" / f"{'0' * 64}.json").write_bytes(b"{")
    assert slots.read_held("0" * 64) == {}


def test_removing_slots_leaves_a_note_alone_that_is_being_written(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    for digest in ("old", "new"):
        slots.write_held(digest, {})
    being_written = tmp_path / "downloads" / ".new.json.abc"
    being_written.touch()
    slots.keep_only({"new"})
    assert {path.name for path in (tmp_path / "downloads").iterdir()} == {
        "new.json",
        being_written.name,
    }
    slots.remove_temporaries()
    assert not being_written.exists()
