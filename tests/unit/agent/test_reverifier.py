"""The agent runs golden samples again at a pace, and a difference becomes a symptom."""

import itertools

import pytest

from edgepack.agent.config import VerificationConfig
from edgepack.agent.runtime.verification import Verified
from edgepack.agent.update.reverifier import FIRST_S, HOT_PAUSE_S, LOOK_S
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

OTHER = Verified(because="golden sample 1 of 8 gives other bits than at first", taken_s=1.0)


@pytest.fixture
def two(world: World, releases: Releases) -> World:
    """Return a device with release 2, which has two variants."""
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    return world


def live(world: World, seconds: float, step_s: float = LOOK_S) -> None:
    until = world.now + seconds
    while world.now < until:
        world.models.advance()
        world.settle()
        world.now += step_s


def pauses(world: World, seconds: float) -> list[float]:
    """Return the pauses before each run, rounded to minutes."""
    before, began = world.now, len(world.verified)
    live(world, seconds, 60.0)
    times = [before, *world.verified[began:]]
    return [b - a for a, b in itertools.pairwise(times)]


def test_first_run_follows_soon_and_further_runs_take_a_thousandth_of_the_time(
    two: World,
) -> None:
    interval_s = VerificationConfig().interval_s
    found = pauses(two, FIRST_S + 2 * interval_s + 100)
    assert found == [FIRST_S, interval_s, interval_s]
    two.verify["cpu"] = [Verified(taken_s=10.0)]
    first_s, second_s = pauses(two, interval_s + 10_100)
    assert second_s == pytest.approx(10_000.0, abs=60.0)
    assert first_s <= interval_s


def test_difference_is_confirmed_and_another_variant_takes_over(two: World) -> None:
    two.verify["cpu"] = [OTHER, OTHER]
    live(two, FIRST_S + 60)
    assert two.pointer is not None
    assert two.pointer.choice.chosen == "cpu-vnni"
    told = two.journal.watch.told
    assert (told.symptom, OTHER.because in told.because) == ("golden", True)
    live(two, FIRST_S + 200)
    assert two.pointer.choice.chosen == "cpu-vnni", "the other variant is right"
    assert len(two.verified) == 3


@pytest.mark.parametrize(
    "second", [Verified(taken_s=1.0), Verified(trouble="no memory", taken_s=1.0)]
)
def test_difference_that_is_not_confirmed_changes_nothing(two: World, second: Verified) -> None:
    two.verify["cpu"] = [OTHER, second]
    live(two, FIRST_S + 100)
    assert len(two.verified) == 2
    assert two.pointer is not None
    assert two.pointer.choice.chosen == "cpu"
    assert two.journal.watch.told.symptom == ""


def test_hot_device_runs_them_once(two: World) -> None:
    live(two, FIRST_S + 20)
    assert len(two.verified) == 1
    two.temperature_c = 95.0
    live(two, HOT_PAUSE_S - 50)
    assert len(two.verified) == 1
    live(two, 100)
    assert len(two.verified) == 2
    live(two, 1000)
    assert len(two.verified) == 2, "the device stays hot"


def test_an_update_is_not_disturbed_and_a_new_release_gives_its_own_answers(
    two: World, releases: Releases
) -> None:
    live(two, FIRST_S + 20)
    two.updater.orders.offer(releases.three.order(3, soak_s=FIRST_S))
    assert two.settle() == "COMMITTED"
    assert len(two.verified) == 1
    committed_at = two.now
    live(two, FIRST_S + 20)
    assert len(two.verified) == 2
    assert two.verified[-1] >= committed_at + FIRST_S
