"""The previous release runs next to a soaking release, if enabled and if resources suffice."""

import msgspec
import pytest

from edgepack.agent.config import LimitConfig, ShadowConfig
from edgepack.agent.state.pointer import Shadow
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.shadowed import Shadowed
from tests.simulators.world import PowerCutError, World, hook_says
from tests.unit.agent.conftest import Releases

ASKED = ShadowConfig(share=0.1, busy_share=0.05, memory_bytes=2**30)


def update(world: World, releases: Releases, shadow: ShadowConfig = ASKED) -> list[Shadow | None]:
    """Bring release 2; return the pointer's shadow for each observed state."""
    named: list[Shadow | None] = []

    def note(state: str) -> None:
        if state == "SOAKING" and world.pointer is not None:
            named.append(world.pointer.shadow)

    world.shadow, world.on_move = shadow, note
    world.boot().start()
    world.updater.orders.offer(releases.two.order(2, soak_s=3))
    world.settle()
    return named


def test_while_it_soaks_the_pointer_names_the_release_before_and_no_longer(
    world: World, releases: Releases
) -> None:
    expected = Shadow(
        bundle=releases.one.ref,
        variant="cpu",
        share=0.1,
        busy_share=0.05,
        memory_bytes=2**30,
        spacing_s=0.0,
        sequence=2,
    )
    assert update(world, releases) == [expected]
    assert world.journal.state == "COMMITTED"
    assert world.pointer is not None
    assert (world.pointer.committed, world.pointer.shadow) == (True, None)
    assert world.journal.committed == world.pointer


def test_a_release_that_goes_back_leaves_none_running(world: World, releases: Releases) -> None:
    world.hook_answers["committed.before"] = [hook_says("refuse")]
    (named,) = update(world, releases)
    assert named is not None
    assert world.journal.state == "ROLLED_BACK"
    assert world.pointer is not None
    assert (world.pointer.bundle, world.pointer.shadow) == (releases.one.ref, None)


def test_by_default_nothing_runs_and_nothing_is_said_of_it(
    world: World, releases: Releases
) -> None:
    assert update(world, releases, ShadowConfig()) == [None]
    assert "shadow" not in world.journal.because


def test_what_came_of_it_is_said_with_the_commit(world: World, releases: Releases) -> None:
    digest = releases.two.ref.digest
    world.collected = [
        Collected(shadowed={digest: Shadowed(count=60, agreed=58), "other": Shadowed(count=9)}),
        Collected(shadowed={digest: Shadowed(count=1)}),
    ]
    update(world, releases)
    assert world.journal.because.endswith("; 58 of 61 shadow inferences agreed with 1.1.0")


@pytest.mark.parametrize(
    ("told", "because"),
    [
        (Shadowed(), "no shadow evidence: none was tried"),
        (Shadowed(because="1.1.0: it ended", sequence=1), "no shadow evidence: none was tried"),
        (
            Shadowed(because="1.1.0: it crashed", sequence=2),
            "no shadow evidence: 1.1.0: it crashed",
        ),
        (
            Shadowed(count=2, agreed=1, because="1.1.0: it crashed", sequence=2),
            "1 of 2 shadow inferences agreed with 1.1.0, then no more: 1.1.0: it crashed",
        ),
    ],
)
def test_where_there_is_none_the_reason_is_said(
    world: World, releases: Releases, told: Shadowed, because: str
) -> None:
    world.collected = [Collected(shadowed={releases.two.ref.digest: told})]
    update(world, releases)
    assert world.journal.state == "COMMITTED"
    assert world.journal.because.endswith(f"; {because}")


def test_two_releases_that_do_not_fit_into_memory_are_not_run_at_once(
    world: World, releases: Releases
) -> None:
    size = world.updater.memory_bytes()
    small = msgspec.structs.replace(ASKED, memory_bytes=size - 1)
    assert update(world, releases, small) == [None]
    assert world.journal.because.endswith(
        f"; no shadow evidence: 1.1.0 takes {size} bytes of memory, {size - 1} are allowed"
    )


def test_a_quarter_of_the_devices_memory_is_what_it_may_take_unless_settings_say(
    world: World, releases: Releases
) -> None:
    world.facts = msgspec.structs.replace(world.facts, memory_bytes=2**32)
    (named,) = update(world, releases, ShadowConfig(share=1.0))
    assert named is not None
    assert named.memory_bytes == 2**30


def test_other_models_that_need_the_memory_have_it(world: World, releases: Releases) -> None:
    size = world.updater.memory_bytes()
    world.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=2 * size)
    (named,) = update(world, releases)
    assert named is not None

    def grow(state: str) -> None:
        if state == "ACTIVATING":
            world.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=2 * size - 1)
            world.on_move = lambda _state: None
            raise PowerCutError

    world.on_move = grow
    world.updater.orders.offer(releases.three.order(3, soak_s=1))
    with pytest.raises(PowerCutError):
        world.settle()
    world.restart()
    assert world.settle() == "COMMITTED"
    assert world.journal.because.endswith(
        f"1.2.0 takes {size} bytes of memory beside {size}, {2 * size - 1} are allowed"
    )


def test_the_first_release_has_none_before(fresh: World, releases: Releases) -> None:
    fresh.shadow = ASKED
    fresh.boot().start()
    fresh.updater.orders.offer(releases.one.order(1, soak_s=1))
    assert fresh.settle() == "COMMITTED"
    assert fresh.journal.because.endswith("; no shadow evidence: no other release served before")


def disagreeing(release: str, disagreed: int, spaced: int) -> Collected:
    agreed = spaced - disagreed
    counted = Shadowed(count=spaced, agreed=agreed, spaced=spaced, spaced_agreed=agreed)
    return Collected(shadowed={release: counted})


def test_a_release_that_disagrees_beyond_doubt_is_rolled_back_while_it_soaks(
    world: World, releases: Releases
) -> None:
    world.collected = [disagreeing(releases.two.ref.digest, 2, 2)] * 2
    update(world, releases)
    assert world.journal.state == "ROLLED_BACK"
    assert "disagrees with tiny 1.1.0 in 4 of 4 spaced shadow inferences" in world.journal.because
    assert world.pointer is not None
    assert world.pointer.bundle == releases.one.ref


def test_a_disagreement_of_which_too_little_is_known_keeps_it_soaking_to_its_deadline(
    world: World, releases: Releases
) -> None:
    world.shadow = ASKED
    world.boot().start()
    digest = releases.two.ref.digest
    world.collected = [disagreeing(digest, 1, 1)]
    world.updater.orders.offer(releases.two.order(2, soak_s=3, deadline_s=60))
    began = world.now
    assert world.settle() == "COMMITTED"
    assert world.now - began >= 59
    assert "0 of 1 shadow inference agreed with 1.1.0" in world.journal.because


def test_a_device_whose_settings_allow_any_disagreement_leaves_it_to_the_fleet(
    world: World, releases: Releases
) -> None:
    world.collected = [disagreeing(releases.two.ref.digest, 500, 500)]
    update(world, releases, msgspec.structs.replace(ASKED, disagree_max=1.0))
    assert world.journal.state == "COMMITTED"
    assert "0 of 500 shadow inferences agreed with 1.1.0" in world.journal.because


def test_a_release_that_is_meant_to_differ_keeps_serving_through_its_soak(
    world: World, releases: Releases
) -> None:
    digest = releases.two.ref.digest
    world.shadow = ASKED
    world.boot().start()
    world.collected = [disagreeing(digest, 100, 100)] * 6
    world.updater.orders.offer(releases.two.order(2, soak_s=3, shadow=1.0))
    assert world.settle() == "COMMITTED"
    assert "0 of " in world.journal.because
    assert "inferences agreed with 1.1.0" in world.journal.because
