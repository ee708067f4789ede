"""A pointer names a complete slot: each file of a slot is removed or replaced, and comes back."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.agent.broker.report import make_report
from edgepack.agent.update.status import read_status
from edgepack.bundle.manifest import HOOKS_FOLDER, SIGNATURE_FILE
from edgepack.bundle.slot import verify_slot
from edgepack.bundle.tree import list_files
from edgepack.wire.orders import BundleRef
from tests.simulators.bundles import ExampleBundle
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

FILES = (
    "golden/golden.npz",
    "hooks/staged.after.d/10-x",
    "manifest.json",
    "model.sig",
    "model/cpu/model.onnx",
)
FOLDERS = ("", "golden", "model", "model/cpu")


def put_pipe(path: Path, _precious: Path) -> None:
    os.mkfifo(path)


def put_folder(path: Path, _precious: Path) -> None:
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_text("in the way")


def put_link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def put_link_to_nothing(path: Path, precious: Path) -> None:
    path.symlink_to(precious / "nowhere" / "at" / "all")


def put_link_to_itself(path: Path, _precious: Path) -> None:
    path.symlink_to(path.name)


def put_socket(path: Path, _precious: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # The path of a socket has few letters.
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def put_empty(path: Path, _precious: Path) -> None:
    path.touch()


def put_nothing(_path: Path, _precious: Path) -> None:
    """Leave the place empty."""


HOWS: tuple[Callable[[Path, Path], None], ...] = (
    put_nothing,
    put_empty,
    put_pipe,
    put_folder,
    put_link,
    put_link_to_nothing,
    put_link_to_itself,
    put_socket,
)


@pytest.fixture
def serving(tmp_path: Path, releases: Releases) -> World:
    """Return a device that serves a release with hooks, after another release."""
    (tmp_path / "state").mkdir()
    world = World(state_dir=tmp_path / "state", keys=(releases.public_key,))
    for bundle in (releases.one, releases.hooked):
        world.link.hold(bundle)
    world.models.start()
    for sequence, bundle in enumerate((releases.one, releases.hooked), 1):
        world.updater.orders.offer(bundle.order(sequence))
        assert world.settle() == "COMMITTED"
    world.seen.clear()
    return world


def slot(world: World, bundle: ExampleBundle) -> Path:
    return world.state_dir / "slots" / bundle.ref.digest


def replace(world: World, bundle: ExampleBundle, path: str, how: Callable[[Path, Path], None]):  # type: ignore[no-untyped-def]
    """Put something else in the place of a file or folder; return a copy that must stay."""
    place = slot(world, bundle) / path
    precious = world.state_dir.parent / "precious"
    if place.is_dir():
        shutil.copytree(place, precious)
        shutil.rmtree(place)
    else:
        shutil.copy(place, precious)
        place.unlink()
    how(place, precious)
    return precious


def listing(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in list_files(path)}
    return {"": path.read_bytes()}


def check_healed(world: World, bundle: ExampleBundle) -> None:
    assert world.pointer is not None
    assert world.pointer.bundle == bundle.ref
    verify_slot(slot(world, bundle), bundle.ref.digest, "cpu")
    assert make_report(world.models, (), sequence=0, boot="b", at=0).warnings == ()


def test_the_files_that_are_removed_here_are_all_that_a_slot_has(
    serving: World, releases: Releases
) -> None:
    assert set(list_files(slot(serving, releases.hooked))) == set(FILES)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("path", [*FILES, *FOLDERS])
def test_each_part_of_a_slot_that_is_removed_or_replaced_is_noticed_and_fetched_again(
    serving: World, releases: Releases, path: str, how: Callable[[Path, Path], None]
) -> None:
    precious = replace(serving, releases.hooked, path, how)
    kept = listing(precious)
    served: list[str] = []
    serving.on_move = lambda _state: served.append(serving.pointer.bundle.version)  # type: ignore[union-attr]
    serving.now += 10
    serving.models.advance()
    assert not serving.updater.is_at_rest
    (warning,) = make_report(serving.models, (), sequence=0, boot="b", at=0).warnings
    assert " is damaged: " in warning
    serving.settle()
    assert "DOWNLOADING" in serving.seen
    is_needed = path != SIGNATURE_FILE and not path.startswith(f"{HOOKS_FOLDER}/")
    assert ("1.1.0" in served) == is_needed, "else the serving variant can be opened"
    assert served[-1] == "1.4.0"
    serving.now += 10
    serving.settle()
    check_healed(serving, releases.hooked)
    assert listing(precious) == kept, "nothing was followed"


@pytest.mark.parametrize("how", [put_nothing, put_pipe, put_link])
@pytest.mark.parametrize("path", [*FILES, *FOLDERS])
def test_a_part_that_is_gone_is_noticed_at_start_and_when_the_same_bundle_is_offered_again(
    serving: World, releases: Releases, path: str, how: Callable[[Path, Path], None]
) -> None:
    replace(serving, releases.hooked, path, how)
    serving.restart()
    serving.updater.orders.offer(releases.hooked.order(3))
    assert serving.settle() == "COMMITTED"
    serving.now += 10
    serving.settle()
    check_healed(serving, releases.hooked)


@pytest.mark.parametrize("path", FILES)
def test_a_slot_that_is_damaged_without_a_last_good_release_is_repaired_in_place(
    fresh: World, releases: Releases, path: str
) -> None:
    fresh.updater.orders.offer(releases.hooked.order(1))
    assert fresh.settle() == "COMMITTED"
    (slot(fresh, releases.hooked) / path).unlink()
    fresh.now += 10
    fresh.models.advance()
    assert fresh.settle() == "COMMITTED"
    fresh.now += 10
    fresh.settle()
    check_healed(fresh, releases.hooked)


@pytest.mark.parametrize("path", FILES)
def test_an_incomplete_fallback_does_not_serve(
    serving: World, releases: Releases, path: str
) -> None:
    """Both slots lack a file: the pointer stays, since a switch would not help."""
    for bundle in (releases.one, releases.hooked):
        (slot(serving, bundle) / path).unlink(missing_ok=True)
    (slot(serving, releases.one) / "golden/golden.npz").unlink(missing_ok=True)
    served: set[str] = set()
    serving.on_move = lambda _state: served.add(serving.pointer.bundle.version)  # type: ignore[union-attr]
    serving.now += 10
    serving.models.advance()
    assert serving.settle() == "COMMITTED"
    assert served == {releases.hooked.ref.version}
    verify_slot(slot(serving, releases.hooked), releases.hooked.ref.digest, "cpu")


def test_a_repair_that_failed_is_tried_again_until_the_wanted_release_serves(
    serving: World, releases: Releases
) -> None:
    (slot(serving, releases.hooked) / "model/cpu/model.onnx").unlink()
    serving.wrong = {"cpu"}  # The probe fails once the files are there again.
    serving.now += 10
    serving.models.advance()
    assert serving.settle() == "ROLLED_BACK"
    assert serving.pointer is not None
    assert serving.pointer.bundle == releases.one.ref
    serving.now += 10
    assert serving.settle() == "ROLLED_BACK"
    (warning,) = serving.models.troubles
    assert "is damaged" in warning
    serving.wrong = set()
    serving.now += 120
    serving.models.advance()
    assert serving.settle() == "COMMITTED"
    serving.now += 10
    serving.settle()
    check_healed(serving, releases.hooked)


def test_a_release_whose_slot_a_hook_damaged_is_never_pointed_to(
    world: World, releases: Releases
) -> None:
    def spoil(state: str) -> None:
        if state == "ACTIVATING":
            (slot(world, releases.two) / "golden" / "golden.npz").unlink()

    world.on_move = spoil
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "ROLLED_BACK"
    assert "'golden/golden.npz' is missing" in world.journal.because
    assert world.pointer is not None
    assert world.pointer.bundle == releases.one.ref


def test_status_names_what_is_missing_without_a_running_agent(
    serving: World, releases: Releases
) -> None:
    (slot(serving, releases.hooked) / "model/cpu/model.onnx").unlink()
    found = read_status(serving.state_dir).models["tiny"]
    assert found.fault == "'model/cpu/model.onnx' is missing"


def test_status_names_the_release_that_an_uncommitted_update_would_go_back_to(
    world: World, releases: Releases
) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    shown: list[BundleRef | None] = []

    def look(state: str) -> None:
        if state == "COMMITTED":  # the soak's pointer still counts
            return
        found = read_status(world.state_dir).models["tiny"]
        if found.active and found.active.bundle == releases.hooked.ref:
            shown.append(found.previous)

    world.on_move = look
    world.updater.orders.offer(releases.hooked.order(3))
    assert world.settle() == "COMMITTED"
    assert shown
    assert set(shown) == {releases.two.ref}
