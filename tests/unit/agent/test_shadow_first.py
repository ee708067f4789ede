"""The next release computes real inferences before it serves: the counts decide the switch."""

from collections.abc import Callable

import pytest

from edgepack.agent.config import LimitConfig, ShadowConfig
from edgepack.agent.state.holders import Held, Holders
from edgepack.agent.state.pointer import Shadow
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.shadowed import Shadowed
from edgepack.agent.update.shadow_first import (
    MOST_PAIRS,
    is_fine,
    why_rolled_back,
)
from tests.simulators.world import PowerCutError, World
from tests.unit.agent.conftest import Releases
from tests.unit.agent.test_watch import window

LIMIT = 0.02


def pairs(disagreed: int, spaced: int, *, failed: int = 0, slow: int = 0) -> Shadowed:
    agreed = spaced - disagreed
    return Shadowed(
        count=spaced,
        agreed=agreed,
        spaced=spaced,
        spaced_agreed=agreed,
        spaced_failed=failed,
        spaced_slow=slow,
    )


def offer(
    world: World, releases: Releases, *said: Shadowed, shadow: float = LIMIT, max_turns: int = 400
) -> str:
    """Bring release 2 with a comparison first; return the final state."""
    digest = releases.two.ref.digest
    world.collected = [Collected(), *(Collected(shadowed={digest: one}) for one in said)]
    order = releases.two.order(2, soak_s=1, deadline_s=100, shadow=shadow)
    world.updater.orders.offer(order)
    return world.settle(max_turns=max_turns)


@pytest.mark.parametrize(
    ("disagreed", "compared"), [(3, 3), (4, 5), (4, 10), (6, 20), (11, 100), (45, 1000)]
)
def test_table_of_rollbacks(disagreed: int, compared: int) -> None:
    assert why_rolled_back(pairs(disagreed, compared), LIMIT, "1.1.0") != ""
    assert why_rolled_back(pairs(disagreed - 1, compared), LIMIT, "1.1.0") == ""


@pytest.mark.parametrize(("disagreed", "compared"), [(0, 74), (1, 131), (2, 174), (3, 213)])
def test_table_of_acceptances(disagreed: int, compared: int) -> None:
    assert is_fine(pairs(disagreed, compared), LIMIT)
    assert not is_fine(pairs(disagreed, compared - 1), LIMIT)
    assert not is_fine(pairs(disagreed + 1, compared), LIMIT)


def test_release_that_is_meant_to_differ_is_judged_by_that_share() -> None:
    assert why_rolled_back(pairs(20, 100), 0.1, "1.1.0") == ""
    assert why_rolled_back(pairs(40, 100), 0.1, "1.1.0") != ""
    assert is_fine(pairs(10, 100), 0.1)
    assert not is_fine(pairs(20, 100), 0.1)


def test_share_of_1_compares_failures_and_latency_alone() -> None:
    assert why_rolled_back(pairs(100, 100), 1.0, "1.1.0") == ""
    assert is_fine(pairs(100, 100), 1.0)
    assert not is_fine(pairs(73, 73), 1.0), "too few to know the share of failures"
    assert "failed or gave NaN" in why_rolled_back(pairs(3, 3, failed=3), 1.0, "1.1.0")
    assert "too slow" in why_rolled_back(pairs(0, 30, slow=28), 1.0, "1.1.0")
    assert not is_fine(pairs(0, 100, slow=51), 1.0)


def test_release_that_was_not_rolled_back_is_accepted_in_the_end() -> None:
    doubtful = pairs(40, MOST_PAIRS)
    assert why_rolled_back(doubtful, LIMIT, "1.1.0") == ""
    assert is_fine(doubtful, LIMIT)
    assert not is_fine(pairs(40, MOST_PAIRS - 1), LIMIT)


def test_old_release_answers_until_the_new_one_is_known_to_agree(
    world: World, releases: Releases
) -> None:
    seen: list[tuple[str, str, Shadow | None]] = []

    def note(state: str) -> None:
        assert world.pointer is not None
        seen.append((state, world.pointer.bundle.version, world.pointer.shadow))

    world.on_move = note
    of_an_earlier_order = Shadowed(because="1.2.0: it needs too much memory", sequence=1)
    steps = [of_an_earlier_order, *[pairs(0, 37)] * 2]
    assert offer(world, releases, *steps) == "COMMITTED"
    assert world.seen[-5:] == ["PROBING", "SHADOWING", "ACTIVATING", "SOAKING", "COMMITTED"]
    activating = next(one for one in seen if one[0] == "ACTIVATING")
    assert activating[1] == "1.1.0", "the old release serves until the switch"
    shadow = activating[2]
    assert shadow is not None
    assert (shadow.is_next, shadow.bundle, shadow.share) == (True, releases.two.ref, 1.0)
    assert shadow.memory_bytes == 2**30
    assert world.pointer is not None
    assert (world.pointer.bundle, world.pointer.shadow) == (releases.two.ref, None)
    event = [one for one in world.events("transition") if one.to_state == "ACTIVATING"][-1]
    assert "74 of 74 spaced inferences agreed with 1.1.0" in event.because
    (wait,) = world.events("wait")
    assert "at least 10 of at most 1000 spaced inferences" in wait.because


@pytest.mark.parametrize(
    ("said", "because"),
    [
        (pairs(3, 3), "3 of 3 spaced inferences differ from 1.1.0"),
        (pairs(3, 3, failed=3), "3 of 3 spaced inferences failed or gave NaN or infinity"),
        (pairs(0, 20, slow=20), "20 of 20 spaced inferences were too slow beside 1.1.0"),
        (Shadowed(because="1.2.0: it crashed", sequence=2), "1.2.0: it crashed"),
        (pairs(1, 2), "undecided after"),
        (
            Shadowed(),
            "undecided after 99 s; 0 of 0 spaced inferences agreed with 1.1.0; no process",
        ),
    ],
)
def test_release_that_is_not_known_to_agree_never_serves(
    world: World, releases: Releases, said: Shadowed, because: str
) -> None:
    served: set[str] = set()
    world.on_move = lambda _: served.add(world.pointer.bundle.version if world.pointer else "")
    assert offer(world, releases, said) == "ROLLED_BACK"
    assert because in world.journal.because
    assert served == {"1.1.0"}
    assert world.pointer is not None
    assert world.pointer.shadow is None
    assert world.pointer == world.journal.committed


def hang(world: World, releases: Releases) -> None:
    one = Held(boot="b", pid=7, model="tiny", digest=releases.one.ref.digest, variant="cpu")
    world.holders = lambda: Holders(held=(one,))


def fail(world: World, releases: Releases) -> None:
    world.collected = [window(releases.one, failed=50)] * 40


@pytest.mark.parametrize(
    ("cause", "because"), [(hang, "process 7 hangs"), (fail, "real inferences failed")]
)
def test_symptom_of_the_serving_release_ends_the_comparison_for_the_watch(
    world: World,
    releases: Releases,
    cause: Callable[[World, Releases], None],
    because: str,
) -> None:
    world.on_move = lambda state: cause(world, releases) if state == "SHADOWING" else None
    assert offer(world, releases) == "ROLLED_BACK"
    assert "1.1.0, which serves: " in world.journal.because
    assert because in world.journal.because


def test_a_process_that_holds_the_model_without_inferences_is_told_apart(
    world: World, releases: Releases
) -> None:
    world.holders = lambda: Holders(held=(Held(boot="", pid=1, model="tiny"),))
    assert offer(world, releases) == "ROLLED_BACK"
    assert "no process" not in world.journal.because


def test_newer_offer_ends_the_comparison(world: World, releases: Releases) -> None:
    world.on_move = lambda state: (
        world.updater.orders.offer(releases.three.order(3)) and None
        if state == "SHADOWING"
        else None
    )
    assert offer(world, releases) == "COMMITTED"
    assert world.pointer is not None
    assert (world.pointer.bundle, world.pointer.shadow) == (releases.three.ref, None)
    assert "SHADOWING" in world.seen


def test_restarted_agent_compares_on(world: World, releases: Releases) -> None:
    def restart(state: str) -> None:
        if state == "SHADOWING":
            world.on_move = lambda _: None
            raise PowerCutError

    world.on_move = restart
    with pytest.raises(PowerCutError):
        offer(world, releases)
    world.restart()
    world.collected = [
        Collected(),
        Collected(shadowed={releases.two.ref.digest: pairs(0, 74)}),
    ]
    assert world.settle() == "COMMITTED"


def test_two_releases_without_enough_memory_are_reported_before_the_download(
    world: World, releases: Releases
) -> None:
    size = world.updater.memory_bytes()
    world.shadow = ShadowConfig(memory_bytes=size - 1)
    world.boot().start()
    assert offer(world, releases) == "REJECTED"
    assert f"a second release takes {size} bytes of memory, {size - 1} are" in world.journal.because
    assert world.probed == {}
    world.shadow, world.limits = ShadowConfig(), LimitConfig(memory_bytes=1)
    world.boot().start()
    world.updater.orders.offer(releases.three.order(3, shadow=LIMIT))
    assert world.settle() == "REJECTED"


def test_first_release_and_way_back_are_not_compared(fresh: World, releases: Releases) -> None:
    fresh.boot().start()
    fresh.updater.orders.offer(releases.one.order(1, shadow=LIMIT))
    assert fresh.settle() == "COMMITTED"
    assert "SHADOWING" not in fresh.seen
