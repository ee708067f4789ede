"""With any contents of the state folder, the agent starts, reports problems, and serves verified
releases.
"""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.agent.broker.report import make_report
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.telemetry.collector import Collected, Trouble
from edgepack.agent.update import slot_scrubber
from edgepack.bundle import chunks
from edgepack.errors import BundleError
from edgepack.wire.orders import Desired
from tests.simulators.bundles import ExampleBundle
from tests.simulators.pointers import write_pointer
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases, Shelf, served, states

FILES = (
    "models/ocr/journal.json",
    "models/ocr/active.json",
    "releases.json",
    "verdicts.json",
    "latency-collected.json",
    "failing.json",
    "downloads/x.json",
    "latency/1-a-b.json",
)


def spoil(path: Path, how: str) -> None:
    path.parent.mkdir(exist_ok=True)
    content = path.read_bytes() if path.exists() else b'{"v": 1}'
    path.unlink(missing_ok=True)
    match how:
        case "one bad byte":
            path.write_bytes(content[:5] + b"\xff" + content[6:])
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "another document":
            path.write_bytes(b"[17]")
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            (path / "inner").mkdir(parents=True)
        case "a link to nothing":
            path.symlink_to("nowhere")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "how",
    [
        *("one bad byte", "truncated", "empty", "another document"),
        *("a pipe", "a folder", "a link to nothing"),
    ],
)
def test_a_file_that_cannot_be_read_keeps_nothing_from_serving_or_being_updated(
    device: World, shelf: Shelf, file: str, how: str
) -> None:
    spoil(device.state_dir / file, how)
    device.restart()
    device.settle()
    assert served(device) == {"det": 1, "ocr": 1, "tiny": 1}
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}


@pytest.mark.parametrize("how", ["one bad byte", "truncated", "empty", "a pipe", "a folder"])
@pytest.mark.parametrize("file", FILES[:3])
def test_damage_is_reported_put_aside_and_lets_no_older_release_in(
    device: World, shelf: Shelf, file: str, how: str
) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    spoil(device.state_dir / file, how)
    device.restart()
    device.settle()
    (warning,) = make_report(device.models, (), sequence=0, boot="b", at=0).warnings
    assert "was damaged (" in warning
    aside = device.state_dir / f"{file}.damaged"
    assert aside.exists()
    assert f"put aside as {aside.name}" in warning
    for sequence, name in enumerate(("det", "ocr", "tiny"), 3):
        order = shelf.first[name].order(sequence)
        device.models.take(Desired(sequence=sequence, models={name: order}))
    device.settle()
    assert set(states(device).values()) == {"REJECTED"}
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}


JOURNALS = {
    "a state that is not known": lambda content: content | {"state": "DREAMING"},
    "a state without its offer": lambda content: content | {"state": "STAGED", "offer": None},
}


@pytest.mark.parametrize("kind", JOURNALS)
def test_a_journal_that_says_what_cannot_be_is_put_aside(
    device: World, shelf: Shelf, kind: str
) -> None:
    path = device.state_dir / "models" / "ocr" / "journal.json"
    path.write_bytes(json.dumps(JOURNALS[kind](json.loads(path.read_bytes()))).encode())
    device.restart()
    device.settle()
    assert served(device)["ocr"] == 1
    assert "ocr: the journal was damaged" in device.models.troubles[0]
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}


@pytest.mark.parametrize("file", FILES[:3])
def test_what_a_newer_edgepack_wrote_is_left_as_it_is(
    device: World, shelf: Shelf, file: str
) -> None:
    path = device.state_dir / file
    newer = json.dumps({"v": 99, "mood": "good"}).encode()
    pointer = (device.state_dir / "models/ocr/active.json").read_bytes()
    path.write_bytes(newer)
    device.restart()
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert path.read_bytes() == newer
    assert "is of version 99.0, this edgepack reads" in device.models.troubles[0]
    if file == "releases.json":
        assert set(states(device).values()) == {"REJECTED"}
        assert "list of release counters is of version 99.0" in device.journal.because
    else:
        report = make_report(device.models, (), sequence=0, boot="b", at=0)
        assert report.models["ocr"].state == "UNREADABLE"
        assert served(device) | {"ocr": 0} == {"det": 2, "ocr": 0, "tiny": 2}
        assert device.models["ocr"].journal.outbox[-1].kind == "refused"
    if not file.endswith("active.json"):
        assert (device.state_dir / "models/ocr/active.json").read_bytes() == pointer
    # It may need any slot, so none was removed.
    assert (device.state_dir / "slots" / shelf.first["ocr"].ref.digest).is_dir()


@pytest.mark.parametrize("file", FILES[:3])
def test_what_is_unknown_in_a_newer_minor_version_is_read_and_kept(
    device: World, shelf: Shelf, file: str
) -> None:
    path = device.state_dir / file
    grown = json.loads(path.read_bytes()) | {"minor": 7, "mood": {"is": "good"}}
    path.write_bytes(json.dumps(grown).encode())
    device.restart()
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}
    found = json.loads(path.read_bytes())
    assert found != grown
    assert (found["minor"], found["mood"]) == (7, {"is": "good"})


def test_a_removed_journal_lowers_nothing(device: World, shelf: Shelf) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    (device.state_dir / "models" / "ocr" / "journal.json").unlink()
    device.restart()
    device.models.take(shelf.desired(3))
    device.settle()
    assert states(device)["ocr"] == "REJECTED"
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}


def test_a_folder_or_a_file_in_place_of_another_is_put_aside(device: World, shelf: Shelf) -> None:
    for name in ("det", "tiny"):
        folder = device.state_dir / "models" / name
        folder.rename(device.state_dir / f"away-{name}")
    (device.state_dir / "models" / "det").write_text("no folder")
    device.restart()
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}
    assert (device.state_dir / "models" / "det.damaged").is_file()


def test_temporary_files_of_killed_writers_go_when_the_agent_starts(device: World) -> None:
    folders = ("", "models/ocr", "models/det", "downloads", "trust", "latency-disk")
    for folder in folders:
        (device.state_dir / folder).mkdir(exist_ok=True)
        left = device.state_dir / folder / ".journal.json.x1y2z3"
        left.write_bytes(b"half")
        os.utime(left, (0, 0))
    young = device.state_dir / "latency-disk" / ".17-a-b.json.x1y2z3"
    young.write_bytes(b"an application writes this now")
    device.restart()
    assert list(device.state_dir.rglob(".*")) == [young]
    device.settle()
    assert served(device) == {"det": 1, "ocr": 1, "tiny": 1}


def rot(world: World, bundle: ExampleBundle) -> Path:
    path = world.state_dir / "slots" / bundle.ref.digest / "model" / "cpu" / "model.onnx"
    content = bytearray(path.read_bytes())
    content[300_000:300_100] = bytes(100)
    path.write_bytes(content)
    return path


def test_weights_that_changed_are_noticed_when_the_same_bundle_is_offered_again(
    device: World, shelf: Shelf
) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    path = rot(device, shelf.second["ocr"])
    seen: list[int] = []
    device.model = "ocr"
    device.on_move = lambda _state: seen.append(served(device)["ocr"])
    device.models.take(Desired(sequence=3, models={"ocr": shelf.second["ocr"].order(3)}))
    device.settle()
    assert seen[-1] == 2
    assert 1 in seen, "the last good release served meanwhile"
    good = shelf.second["ocr"].folder / "model" / "cpu" / "model.onnx"
    assert path.read_bytes() == good.read_bytes()
    warned = [one for one in device.journal.outbox if one.kind == "warning"]
    assert "'model/cpu/model.onnx' is not what was installed" in warned[0].because
    assert device.journal.previous is not None
    assert device.journal.previous.bundle.release == 1


@pytest.mark.parametrize("release", [1, 2])
def test_weights_that_changed_are_noticed_without_being_asked_and_fetched_again(
    device: World, shelf: Shelf, release: int
) -> None:
    """With a release to fall back on, and without."""
    if release == 2:
        device.models.take(shelf.desired(2, release=2))
        device.settle()
    bundles = shelf.first if release == 1 else shelf.second
    path = rot(device, bundles["ocr"])
    for _ in range(3):
        device.now += 24 * 3600
        device.models.advance()
    assert not device.models["ocr"].is_at_rest
    device.settle()
    assert served(device)["ocr"] == release
    assert path.read_bytes() == (bundles["ocr"].folder / "model/cpu/model.onnx").read_bytes()
    assert states(device) == dict.fromkeys(("det", "ocr", "tiny"), "COMMITTED")


def test_weights_that_changed_are_noticed_while_another_model_waits_for_its_files(
    device: World, shelf: Shelf
) -> None:
    newer, same = shelf.desired(2, release=2).models["ocr"], shelf.desired(2)
    device.models.take(replace(same, models={**same.models, "ocr": newer}))
    for _ in range(20):
        device.models.advance()
    expected = {"det": "COMMITTED", "ocr": "OFFERED", "tiny": "COMMITTED"}
    assert states(device) == expected, "nobody sends the files"
    rot(device, shelf.first["det"])
    device.now += 24 * 3600
    for _ in range(3):
        device.models.advance()
        device.now += 10
    told = [event.because for event in device.models["det"].journal.outbox]
    assert any("bytes have changed" in one for one in told), told


def test_what_a_process_could_not_open_is_looked_at_soon(device: World, shelf: Shelf) -> None:
    path = rot(device, shelf.first["ocr"])
    said = Collected(troubles=(Trouble(model="ocr", because="it cannot be opened"),))
    device.said_at_rest = [said]
    device.now += 10
    device.models.advance()
    device.settle()
    assert path.read_bytes() == (shelf.first["ocr"].folder / "model/cpu/model.onnx").read_bytes()


class FailingDisk:
    """A disk that fails to read files below a folder.

    Attributes:
        reads: Failed reads.
        fails: Whether it fails now.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.reads, self.fails = 0, True
        read = chunks.open_regular

        def open_regular(path: Path) -> BinaryIO:
            if not self.fails or folder not in (path, *path.parents):
                return read(path)
            self.reads += 1
            error = OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            raise BundleError("cannot read it", found_in=str(path)) from error

        monkeypatch.setattr(chunks, "open_regular", open_regular)
        read_at = os.pread

        def pread(descriptor: int, size: int, offset: int) -> bytes:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if not self.fails or folder not in (path, *path.parents):
                return read_at(descriptor, size, offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        monkeypatch.setattr(os, "pread", pread)


def pass_seconds(device: World, seconds: int) -> None:
    for _ in range(seconds):
        device.now += 1
        device.models.advance()
        device.link.deliver(device.models)


@pytest.mark.parametrize("part", ["model", ""])
@pytest.mark.parametrize("lasts_s", [50, 300])
def test_a_slot_that_cannot_be_read_is_damaged_after_a_minute(
    device: World, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, lasts_s: int, part: str
) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    slot = device.state_dir / "slots" / shelf.second["ocr"].ref.digest
    disk = FailingDisk(monkeypatch, slot / part)
    cannot_open = Collected(troubles=(Trouble(model="ocr", because="it cannot be opened"),))
    device.said_at_rest = [cannot_open]
    pass_seconds(device, 10)
    seen = set()
    for _ in range(lasts_s):
        pass_seconds(device, 1)
        seen.add(any("disk fails" in trouble for trouble in device.models.troubles))
    assert seen == {True}, "a fault that lasts does not come and go"
    assert disk.reads <= 2 + lasts_s, "each 5 s, once by each reader"
    assert served(device) == {"det": 2, "ocr": 2 if lasts_s < 60 else 1, "tiny": 2}
    told = device.models["ocr"].journal.watch.told
    serving = "cpu of 1.2.0" if lasts_s < 60 else "cpu of 1.1.0"
    assert told.chosen in ("", serving)
    disk.fails = False
    pass_seconds(device, 200)
    assert served(device)["ocr"] == 2
    assert device.models.troubles == ()
    assert states(device)["ocr"] == "COMMITTED"


def serving(world: World) -> ActivePointer:
    pointer = world.pointer
    assert pointer is not None
    return pointer


@pytest.mark.parametrize("part", ["its variant", "all of the slot"])
def test_a_variant_that_could_not_be_read_for_a_while_serves_again(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    wanted = serving(world).choice.chosen
    folder = world.state_dir / "slots" / releases.two.ref.digest
    is_whole = part == "all of the slot"
    disk = FailingDisk(monkeypatch, folder if is_whole else folder / "model" / wanted)
    world.said_at_rest = [
        Collected(troubles=(Trouble(model="tiny", because="it cannot be opened"),))
    ]
    pass_seconds(world, 200)
    assert (serving(world).digest == releases.two.ref.digest) is not is_whole
    assert is_whole or serving(world).choice.chosen != wanted, "the other variant serves"
    disk.fails = False
    pass_seconds(world, 600)
    assert serving(world).digest == releases.two.ref.digest
    assert serving(world).choice.chosen == wanted
    assert serving(world).choice.rejected == {}
    assert world.updater.journal.committed == serving(world)
    assert world.updater.journal.watch.told.state == "WATCHING"
    assert world.models.troubles == ()


@pytest.mark.parametrize("part", ["model", "", "manifest.json", "model.sig"])
@pytest.mark.parametrize("after_s", [0, 200])
def test_a_newer_release_replaces_one_that_cannot_be_read(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch, part: str, after_s: int
) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    FailingDisk(monkeypatch, world.state_dir / "slots" / releases.two.ref.digest / part)
    world.updater._model.store.update(brought={})  # Nobody can send it again.
    pass_seconds(world, after_s)
    assert bool(world.models.troubles) is bool(after_s)
    world.updater.orders.offer(releases.three.order(3))
    pass_seconds(world, 200)
    assert serving(world).digest == releases.three.ref.digest
    assert world.updater.journal.state == "COMMITTED"
    assert world.models.troubles == ()
    assert world.updater.journal.watch.told.state == "WATCHING"


def test_a_variant_whose_slot_turns_out_intact_serves_again(
    world: World, releases: Releases
) -> None:
    """The other variant took over while the disk failed; then nothing is to be fetched."""
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    pointer = serving(world)
    wanted = pointer.choice.chosen
    other = next(name for name in ("cpu", "cpu-vnni") if name != wanted)
    choice = msgspec.structs.replace(
        pointer.choice, chosen=other, rejected={wanted: "it cannot be read: Input/output error"}
    )
    write_pointer(world.state_dir, msgspec.structs.replace(pointer, choice=choice))
    world.restart()
    pass_seconds(world, 100)
    assert serving(world).choice == pointer.choice
    assert world.updater.journal.state == "COMMITTED"
    assert world.models.troubles == ()


def test_an_intact_slot_serves_again_although_nobody_sends_its_files(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    folder = world.state_dir / "slots" / releases.two.ref.digest / "model"
    disk = FailingDisk(monkeypatch, folder)
    world.link.spoil = lambda _index, _content: None
    world.said_at_rest = [
        Collected(troubles=(Trouble(model="tiny", because="it cannot be opened"),))
    ]
    pass_seconds(world, 200)
    assert serving(world).digest == releases.one.ref.digest
    world.restart()
    pass_seconds(world, 100)
    assert serving(world).digest == releases.one.ref.digest
    disk.fails = False
    pass_seconds(world, 100)
    assert serving(world).digest == releases.two.ref.digest
    assert world.updater.journal.state == "COMMITTED"


def test_a_fault_that_begins_long_after_the_start_is_noticed_too(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process opens the model, and the daily read is far away."""
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    pass_seconds(world, 100)
    folder = world.state_dir / "slots" / releases.two.ref.digest
    disk, stamps = FailingDisk(monkeypatch, folder), slot_scrubber._stamp

    def stamp(of: Path) -> Iterator[tuple[str, int, int, int, int]]:
        if disk.fails and of == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(of))
        yield from stamps(of)

    monkeypatch.setattr(slot_scrubber, "_stamp", stamp)
    pass_seconds(world, 100)
    assert serving(world).digest == releases.one.ref.digest
    disk.fails = False
    pass_seconds(world, 100)
    assert serving(world).digest == releases.two.ref.digest


def test_rot_of_a_release_that_nobody_sends_again_leaves_something_serving(
    device: World, shelf: Shelf
) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    for bundle in shelf.second.values():  # Else its chunks came from the other slots.
        rot(device, bundle)
    device.link.spoil = lambda _index, _content: None
    device.models["ocr"].orders.look_again()
    for _ in range(50):
        device.models.advance()
        device.now += 1
    assert served(device)["ocr"] == 1
    assert states(device)["ocr"] == "DOWNLOADING"


def test_an_unsigned_lie_about_what_serves_raises_no_release_counter(
    device: World, shelf: Shelf
) -> None:
    order = shelf.first["ocr"].order(2)
    lie = msgspec.structs.replace(
        order, bundle=msgspec.structs.replace(order.bundle, version="9", release=9)
    )
    device.models.take(Desired(sequence=2, models={"ocr": lie}))
    device.settle()
    assert states(device)["ocr"] == "REJECTED"
    assert served(device)["ocr"] == 1
    counters = json.loads((device.state_dir / "releases.json").read_text())["highest"]
    assert counters["ocr"] == 1
