"""Several models on the same device: separate life cycles, shared resources, and limits."""

import pytest

from edgepack.agent.config import LimitConfig
from edgepack.agent.telemetry.collector import Collected, Trouble
from edgepack.agent.update.models import MAX_MODELS
from edgepack.agent.update.status import read_status
from edgepack.errors import TransferError
from edgepack.wire.orders import Desired, RemoveModel
from tests.simulators.world import PowerCutError, World, hook_says
from tests.unit.agent.conftest import NAMES, Releases, Shelf, served, slots, states


def test_all_models_of_a_document_are_updated_and_each_keeps_its_way_back(
    device: World, shelf: Shelf
) -> None:
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}
    both = (*shelf.first.values(), *shelf.second.values())
    assert slots(device) == {bundle.ref.digest for bundle in both}


def test_a_model_that_is_not_named_stays(device: World, shelf: Shelf) -> None:
    before = slots(device)
    device.models.take(Desired(sequence=2, models={"ocr": shelf.second["ocr"].order(2)}))
    device.settle()
    device.models.take(Desired(sequence=3, models={}))
    device.settle()
    assert served(device) == {"det": 1, "ocr": 2, "tiny": 1}
    assert slots(device) == before | {shelf.second["ocr"].ref.digest}


def test_a_model_that_is_told_to_go_takes_nothing_of_the_others_with_it(
    device: World, shelf: Shelf
) -> None:
    device.models.take(Desired(sequence=2, models={"ocr": RemoveModel(sequence=2, issued_at=0)}))
    device.settle()
    assert served(device) == {"det": 1, "tiny": 1}
    assert states(device)["ocr"] == "REMOVED"
    assert slots(device) == {shelf.first[name].ref.digest for name in ("det", "tiny")}
    # What was said before, heard once more, does not bring it back.
    device.models.take(shelf.desired(1))
    device.settle()
    assert states(device)["ocr"] == "REMOVED"


def test_a_model_that_fails_leaves_the_others_alone(device: World, shelf: Shelf) -> None:
    device.hook_answers["activating.after"] = [hook_says("refuse"), hook_says("go")]
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    assert sorted(states(device).values()) == ["COMMITTED", "COMMITTED", "ROLLED_BACK"]
    assert sorted(served(device).values()) == [1, 2, 2]
    assert len(slots(device)) == 5


def test_updates_that_soak_at_once_judge_what_was_said_of_each(device: World, shelf: Shelf) -> None:
    trouble = Trouble(model="det", because="version 1 keeps serving")
    device.models.take(shelf.desired(2, release=2, soak_s=5.0))
    device.collected = [Collected(troubles=(trouble,))]
    device.settle()
    assert states(device) == {"det": "ROLLED_BACK", "ocr": "COMMITTED", "tiny": "COMMITTED"}


def test_what_does_not_fit_into_memory_beside_the_others_is_rejected_with_the_numbers(
    device: World, shelf: Shelf
) -> None:
    (size,) = {one.memory_bytes() for one in device.models}
    device.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=3 * size)
    device.boot().start()
    asked = device.link.wanted
    device.models.take(Desired(sequence=2, models={"other": shelf.other.order(2)}))
    device.settle()
    assert states(device)["other"] == "REJECTED"
    assert device.models["other"].journal.because == (
        f"no memory: the model needs {size} bytes beside {size} of det, {size} of ocr, "
        f"{size} of tiny; {3 * size} bytes are allowed, {size} are missing"
    )
    assert device.link.wanted == asked + 1, "but for manifest and signature nothing was asked for"


def test_updates_that_do_not_fit_into_memory_at_once_come_one_after_the_other(
    device: World, shelf: Shelf
) -> None:
    size = device.models["det"].memory_bytes()
    device.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=4 * size)
    device.boot().start()
    device.models.take(shelf.desired(2, release=2, soak_s=1.0))
    most, shown = 0, set[str]()
    while not all(one.is_at_rest for one in device.models):
        device.models.advance()
        device.link.deliver(device.models)
        most = max(most, sum(one.coming_bytes() for one in device.models))
        shown |= {one.because for one in read_status(device.state_dir).models.values()}
        device.now += 0.5
    assert served(device) == {"det": 2, "ocr": 2, "tiny": 2}
    assert most == size
    waits = [one.because for one in device.events("wait")]
    assert waits == [f"waits until other updates end: they need {size} bytes of memory"] * 2
    assert set(waits) <= shown


def test_disk_that_was_promised_to_another_model_is_not_promised_twice(
    device: World, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 900_000  # Room for one release of 525 KB, not for two.
    monkeypatch.setattr("edgepack.agent.state.slots.Slots.free_bytes", lambda _self: free)
    monkeypatch.setattr("edgepack.agent.state.slots.Slots.allocated_bytes", lambda *_: 0)
    device.models.take(shelf.desired(2, release=2))
    device.settle()
    rejected = [one.journal.because for one in device.models if one.journal.state == "REJECTED"]
    assert rejected
    assert "are promised to other models and 0 must stay free" in rejected[0]


def test_several_updates_at_once_survive_power_cuts(
    tmp_path_factory: pytest.TempPathFactory, releases: Releases, shelf: Shelf
) -> None:
    """Cut the power all along three updates; each then ends as without a cut."""
    folder = tmp_path_factory.mktemp("cuts")

    def start(name: str) -> World:
        (folder / name).mkdir()
        world = World(state_dir=folder / name, keys=(releases.public_key,))
        for bundle in (*shelf.first.values(), *shelf.second.values()):
            world.link.hold(bundle)
        world.models.start()
        world.models.take(shelf.desired(1))
        world.settle()
        world.faults.moments = 0
        return world

    def offer(world: World) -> None:
        while any(one.journal.acted_sequence < 2 for one in world.models):
            try:
                world.models.take(shelf.desired(2, release=2))
                world.settle()
            except PowerCutError:
                world.restart()

    undisturbed = start("undisturbed")
    offer(undisturbed)
    for moment in range(3, undisturbed.faults.moments, 29):
        world = start(f"cut-{moment}")
        world.faults.cut_at = moment
        offer(world)
        world.settle_through_power_cuts()
        assert served(world) == {"det": 2, "ocr": 2, "tiny": 2}, f"cut at {moment}"


def test_an_order_that_makes_no_sense_does_not_keep_the_others_from_being_taken(
    device: World, shelf: Shelf
) -> None:
    orders = dict(shelf.desired(2, release=2).models)
    orders["ocr"] = shelf.second["det"].order(2)
    with pytest.raises(TransferError, match=r"'ocr': the offer makes no sense: bundle.name is"):
        device.models.take(Desired(sequence=2, models=orders))
    device.settle()
    assert served(device) == {"det": 2, "ocr": 1, "tiny": 2}


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "x" * 101])
def test_a_name_that_no_model_can_have_makes_no_folder(
    device: World, shelf: Shelf, name: str
) -> None:
    with pytest.raises(TransferError, match="is not a name of a model"):
        device.models.take(Desired(sequence=2, models={name: shelf.second["det"].order(2)}))
    assert {path.name for path in (device.state_dir / "models").iterdir()} == set(NAMES)


def test_names_that_were_only_heard_do_not_keep_a_real_model_out(
    device: World, shelf: Shelf
) -> None:
    names = [f"lie-{number}" for number in range(MAX_MODELS + 10)]
    device.models.take(Desired(sequence=2, models={name: shelf.lie(name) for name in names}))
    device.settle()
    assert len(list(device.models)) == MAX_MODELS
    device.models.take(Desired(sequence=3, models={"other": shelf.other.order(3)}))
    device.settle()
    assert served(device) == {"det": 1, "ocr": 1, "other": 1, "tiny": 1}


def test_no_number_in_a_message_keeps_later_ones_from_being_heard(
    device: World, shelf: Shelf
) -> None:
    huge = shelf.second["ocr"].order(2**53, expires_at=1.0)
    with pytest.raises(TransferError, match="sequence is 9007199254740992"):
        device.models.take(Desired(sequence=2**53, models={"ocr": huge}))
    expired = shelf.second["ocr"].order(2**32, expires_at=1.0)
    assert device.models.take(Desired(sequence=2**53, models={"ocr": expired})) == {
        "ocr": "refused"
    }
    device.settle()
    device.models.take(Desired(sequence=2, models={"ocr": shelf.second["ocr"].order(2)}))
    device.settle()
    assert served(device)["ocr"] == 2
