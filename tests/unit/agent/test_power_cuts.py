"""The power is cut, or the disk is full, at every single write and call of an update."""

import shutil
from pathlib import Path

import pytest

from edgepack.agent.update.lifecycle import RESTING
from tests.simulators.world import Faults, PowerCutError, World, hook_says
from tests.unit.agent.conftest import Releases


def count_moments(world: World, releases: Releases) -> Faults:
    """Count the moments and writes of an undisturbed update."""
    world.faults.moments = world.faults.writes = 0
    world.updater.orders.offer(releases.two.order(2, soak_s=1))
    assert world.settle() == "COMMITTED"
    return world.faults


@pytest.fixture
def serving_one(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of a device that serves release 1, to be copied."""
    return shutil.copytree(world.state_dir, tmp_path_factory.mktemp("template") / "state")


def new_world(folder: Path, serving_one: Path, releases: Releases) -> World:
    """Return a device that serves release 1, and bundle 2 to offer."""
    shutil.copytree(serving_one, folder)
    world = World(state_dir=folder, keys=(releases.public_key,))
    for bundle in (releases.one, releases.two):
        world.link.hold(bundle)
    world.models.start()
    return world


def offer_with_a_controller(world: World, releases: Releases) -> None:
    """Offer until the device has stored the offer, like a controller without reports."""
    while not world.has_heard(2):
        try:
            world.updater.orders.offer(releases.two.order(2, soak_s=1))
        except PowerCutError:
            world.restart()
        except OSError:
            continue


def test_a_power_cut_at_any_moment_leaves_a_model_serving_and_the_update_completes(
    tmp_path_factory: pytest.TempPathFactory, world: World, serving_one: Path, releases: Releases
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    moments = count_moments(world, releases).moments
    assert moments > 40
    for moment in range(moments):
        tried = new_world(folder / f"cut-{moment}", serving_one, releases)
        tried.faults.moments, tried.faults.cut_at = 0, moment
        offer_with_a_controller(tried, releases)
        assert tried.settle_through_power_cuts() == "COMMITTED", f"cut at {moment}"
        assert tried.pointer is not None
        assert tried.pointer.bundle == releases.two.ref
        assert tried.pointer.committed
        assert tried.journal.previous is not None
        assert tried.journal.previous.bundle == releases.one.ref
        slots = {slot.name for slot in (tried.state_dir / "slots").iterdir()}
        assert slots == {releases.one.ref.digest, releases.two.ref.digest}
        leftovers = [path.name for path in tried.state_dir.iterdir() if path.suffix == ""]
        assert sorted(leftovers) == ["downloads", "models", "slots"]


def test_a_power_cut_at_any_moment_of_a_rollback_leaves_the_old_model_serving(
    tmp_path_factory: pytest.TempPathFactory, world: World, serving_one: Path, releases: Releases
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    refusing = {"activating.after": [hook_says("refuse", "the NPU is too hot")]}
    world.hook_answers = dict(refusing)
    world.faults.moments = 0
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "ROLLED_BACK"
    for moment in range(world.faults.moments):
        tried = new_world(folder / f"cut-{moment}", serving_one, releases)
        tried.hook_answers = dict(refusing)
        tried.faults.moments, tried.faults.cut_at = 0, moment
        offer_with_a_controller(tried, releases)
        assert tried.settle_through_power_cuts() == "ROLLED_BACK", f"cut at {moment}"
        assert tried.journal.because == "the NPU is too hot"
        assert tried.pointer is not None
        assert tried.pointer.bundle == releases.one.ref


@pytest.mark.parametrize("full_for", [1, 3])
def test_an_update_waits_for_a_disk_that_is_full_after_any_number_of_writes(
    tmp_path_factory: pytest.TempPathFactory,
    world: World,
    serving_one: Path,
    releases: Releases,
    full_for: int,
) -> None:
    folder = tmp_path_factory.mktemp("full")
    writes = count_moments(world, releases).writes
    for number in range(writes):
        tried = new_world(folder / f"full-{number}", serving_one, releases)
        tried.faults.writes, tried.faults.full_from = 0, number
        tried.faults.full_for = full_for
        offer_with_a_controller(tried, releases)
        assert tried.settle() == "COMMITTED", f"full at {number}"
        assert tried.pointer is not None
        assert tried.pointer.bundle == releases.two.ref
        assert tried.models.troubles == ()
        tried.check_pointer()


@pytest.mark.parametrize("full_for", [1, 3])
def test_an_update_that_does_not_wait_for_a_full_disk_fails_and_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    world: World,
    serving_one: Path,
    releases: Releases,
    full_for: int,
) -> None:
    folder = tmp_path_factory.mktemp("full")
    writes = count_moments(world, releases).writes
    ends = set()
    for number in range(writes):
        tried = new_world(folder / f"full-{number}", serving_one, releases)
        tried.faults.writes, tried.faults.full_from = 0, number
        tried.faults.full_for = full_for
        tried.disk_patience_s = 0.0
        tried.restart()
        offer_with_a_controller(tried, releases)
        end = tried.settle()
        ends.add(end)
        assert tried.pointer is not None
        served = tried.pointer.bundle.release
        assert served == (2 if end == "COMMITTED" else 1), f"full at {number}"
        if end != "COMMITTED":
            assert "No space left on device" in tried.journal.because
        tried.check_pointer()
        assert tried.journal.state in RESTING
    assert ends >= {"COMMITTED", "ROLLED_BACK"}


def test_chunks_that_a_power_cut_swallowed_are_fetched_again(
    world: World, releases: Releases
) -> None:
    """The note lists the chunks, but the disk had not kept the synced bytes."""

    def damage(state: str) -> None:
        if state == "VERIFIED":
            raise PowerCutError

    world.on_move = damage
    world.updater.orders.offer(releases.two.order(2))
    with pytest.raises(PowerCutError):
        world.settle()
    model = world.state_dir / "slots" / releases.two.ref.digest / "model" / "cpu" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[300_000:310_000] = bytes(10_000)
    model.write_bytes(content)
    journal = world.state_dir / "models" / "tiny" / "journal.json"
    journal.write_bytes(journal.read_bytes().replace(b'"VERIFIED"', b'"DOWNLOADING"', 1))
    world.on_move = lambda _state: None
    world.restart()
    assert world.settle() == "COMMITTED"
    assert model.read_bytes() == (releases.two.folder / "model" / "cpu" / "model.onnx").read_bytes()


def test_a_download_goes_on_after_a_restart_with_what_was_noted(
    world: World, releases: Releases
) -> None:
    accepted = 0

    def count(_index: int, content: bytes) -> bytes | None:
        nonlocal accepted
        accepted += 1
        return content if accepted % 3 else None

    world.link.spoil = count
    world.updater.orders.offer(releases.three.order(2))
    while world.updater.journal.state != "DOWNLOADING" or not world.link.needs:
        world.updater.advance()
        world.now += 0.2
        if world.updater.journal.state != "DOWNLOADING":
            world.link.deliver(world.updater)
    world.link.deliver(world.updater)
    world.updater.suspend()
    before = world.updater.progress
    assert 0 < before < 1
    world.restart()
    world.updater.advance()
    assert world.updater.progress == before
    assert world.settle() == "COMMITTED"
