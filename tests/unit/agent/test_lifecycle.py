"""The life cycle as a table: failures and kills by place, and final states."""

from pathlib import Path
from typing import get_args

import pytest

from edgepack.agent.config import LimitConfig
from edgepack.agent.telemetry.collector import Collected, Trouble
from edgepack.agent.update.lifecycle import (
    GOING_BACK,
    RESTING,
    TABLE,
    State,
    follow,
    mermaid,
    resume,
)
from edgepack.wire import histogram
from edgepack.wire.orders import BundleRef, RemoveModel
from edgepack.wire.telemetry import Telemetry
from tests.simulators.bundles import ExampleBundle
from tests.simulators.world import PowerCutError, World, hook_says
from tests.unit.agent.conftest import Releases

RUNNING: tuple[State, ...] = tuple(state for state in TABLE if state not in RESTING)
CANNOT_FAIL = ("ROLLING_BACK", "REMOVING")
UPDATING: tuple[State, ...] = tuple(state for state in RUNNING if state != "REMOVING")


def bundle_for(releases: Releases, state: State) -> ExampleBundle:
    """Return a bundle of release 2 that leads through a state."""
    states = {row.firmware for row in TABLE.values()} | {"REBOOTING"}
    return releases.firm if state in states else releases.two


def shadow_for(state: State) -> float | None:
    """Return the order's share of differing answers that leads through a state."""
    return 0.02 if state == "SHADOWING" else None


def serves(world: World) -> int | None:
    return world.pointer.bundle.release if world.pointer else None


def previous(world: World) -> BundleRef | None:
    return world.journal.previous.bundle if world.journal.previous else None


def test_every_state_has_a_row_and_leads_only_to_states() -> None:
    assert set(TABLE) == set(get_args(State))
    for row in TABLE.values():
        for after in (row.success, row.failure, row.restart, row.newer, row.already, row.removal):
            assert after is None or after in TABLE


def test_every_running_state_ends_in_a_resting_one_whatever_happens() -> None:
    for state in RUNNING:
        for outcome in ("success", "failure"):
            at: State = state
            for _ in range(len(TABLE)):
                if at in RESTING:
                    break
                # What cannot fail is tried until it succeeds.
                at = follow(at, "success" if TABLE[at].failure is None else outcome)
            assert at in RESTING


def test_only_what_comes_before_the_first_byte_is_rejected() -> None:
    assert [state for state, row in TABLE.items() if row.failure == "REJECTED"] == ["OFFERED"]


def test_an_outcome_that_a_state_cannot_have_is_a_bug() -> None:
    with pytest.raises(ValueError, match="ROLLING_BACK has no state to follow on failure"):
        follow("ROLLING_BACK", "failure")


@pytest.mark.parametrize("state", RUNNING)
def test_too_many_restarts_end_an_update_but_never_a_rollback_or_removal(state: State) -> None:
    after = resume(state, restarts=11, max_restarts=10)
    if state in CANNOT_FAIL:
        assert after.state == state
    else:
        assert after.state == TABLE[state].failure
        assert "restarted 11 times" in after.because
    assert resume(state, restarts=10, max_restarts=10).state == TABLE[state].restart


def test_the_diagram_shows_every_state_and_every_failure() -> None:
    drawn = mermaid()
    for state, row in TABLE.items():
        assert f"{state} : {state}" in drawn
        if row.failure:
            assert f"{state} --> {row.failure} : failure" in drawn
        if row.removal:
            assert f"{state} --> {row.removal} : told to go" in drawn


def test_an_update_walks_the_table_and_calls_the_hooks_in_order(
    world: World, releases: Releases
) -> None:
    world.updater.orders.offer(releases.two.order(2, soak_s=3.0))
    assert world.settle() == "COMMITTED"
    assert world.seen == [
        "OFFERED",
        "DOWNLOADING",
        "VERIFIED",
        "STAGED",
        "PROBING",
        "ACTIVATING",
        "SOAKING",
        "COMMITTED",
    ]
    assert world.hooks_run == [
        f"{stage}.{when}"
        for stage in ("offered", "staged", "activating", "committed")
        for when in ("before", "after")
    ]
    assert world.hook_facts["activating.after"]["variant"] == "cpu"
    assert world.hook_facts["offered.before"]["bundle_folder"] == ""
    assert world.probed == {"cpu": 1, "cpu-vnni": 1}
    assert serves(world) == 2
    assert world.pointer is not None
    assert world.pointer.committed
    assert previous(world) == releases.one.ref


FAILURES = {
    "offered.before": ("REJECTED", ["OFFERED", "REJECTED"]),
    "offered.after": ("REJECTED", ["OFFERED", "REJECTED"]),
    "staged.before": ("ROLLED_BACK", ["VERIFIED", "ROLLING_BACK"]),
    "staged.after": ("ROLLED_BACK", ["STAGED", "ROLLING_BACK"]),
    "activating.before": ("ROLLED_BACK", ["ACTIVATING", "ROLLING_BACK"]),
    "activating.after": ("ROLLED_BACK", ["ACTIVATING", "ROLLING_BACK"]),
    "committed.before": ("ROLLED_BACK", ["SOAKING", "ROLLING_BACK"]),
}


@pytest.mark.parametrize("hook", FAILURES)
def test_a_hook_that_refuses_ends_the_update_and_the_old_model_serves(
    world: World, releases: Releases, hook: str
) -> None:
    world.hook_answers[hook] = [hook_says("refuse", "hook x refused: NPU firmware 1.2 < 1.4")]
    world.updater.orders.offer(releases.two.order(2))
    end, passed = FAILURES[hook]
    assert world.settle() == end
    assert all(state in world.seen for state in passed)
    assert world.journal.because == "hook x refused: NPU firmware 1.2 < 1.4"
    assert [event.because for event in world.events("hook")] == [world.journal.because]
    assert serves(world) == 1
    assert world.pointer is not None
    assert world.pointer.committed
    assert {slot.name for slot in (world.state_dir / "slots").iterdir()} == {
        releases.one.ref.digest
    }


@pytest.mark.parametrize("hook", ["committed.after", "rolled_back.before", "rolled_back.after"])
def test_a_hook_cannot_undo_what_is_decided(world: World, releases: Releases, hook: str) -> None:
    world.hook_answers[hook] = [hook_says("refuse")]
    end = "COMMITTED"
    if hook.startswith("rolled_back"):
        world.hook_answers["activating.after"] = [hook_says("refuse")]
        end = "ROLLED_BACK"
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == end
    assert serves(world) == (2 if end == "COMMITTED" else 1)
    assert hook in world.hooks_run


@pytest.mark.parametrize("refusing", ["staged.before", "staged.after", "activating.after"])
def test_what_staged_hooks_set_up_rolled_back_hooks_can_undo(
    world: World, releases: Releases, refusing: str
) -> None:
    world.hook_answers[refusing] = [hook_says("refuse")]
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "ROLLED_BACK"
    assert world.hooks_run[-2:] == ["rolled_back.before", "rolled_back.after"]


@pytest.mark.parametrize("hook", [*FAILURES, "committed.after"])
def test_a_hook_that_asks_for_time_gets_it(world: World, releases: Releases, hook: str) -> None:
    world.hook_answers[hook] = [hook_says("retry"), hook_says("retry"), hook_says("go")]
    world.updater.orders.offer(releases.two.order(2))
    began = world.now
    assert world.settle() == "COMMITTED"
    assert world.hooks_run.count(hook) == 3
    assert world.now - began >= 15  # 5 s, then 10 s
    assert serves(world) == 2


def test_a_variant_that_is_wrong_here_is_passed_over_and_none_right_rolls_back(
    world: World, releases: Releases
) -> None:
    world.wrong = {"cpu"}
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    assert world.pointer is not None
    assert world.pointer.choice.chosen == "cpu-vnni"
    world.updater.orders.offer(releases.three.order(3))
    assert world.settle() == "ROLLED_BACK"
    assert "cosine 0.2, at least 0.99 is needed" in world.journal.because
    assert serves(world) == 2


def windows(releases: Releases, *, failures: int, inferences: int) -> Collected:
    latency = histogram.LatencyRecorder()
    for _ in range(inferences):
        latency.record(1.0)
    told = Telemetry(
        digest=releases.two.ref.digest,
        variant="cpu",
        provider="x",
        window_start=0,
        window_s=1,
        latency=latency.snapshot(),
        failures=failures,
    )
    return Collected(telemetry=(told,))


def test_real_inferences_that_fail_while_it_soaks_roll_it_back(
    world: World, releases: Releases
) -> None:
    world.collected = [windows(releases, failures=3, inferences=97)]
    world.updater.orders.offer(releases.two.order(2, soak_s=60))
    assert world.settle() == "ROLLED_BACK"
    assert world.journal.because == (
        "3 of 100 real inferences failed while it soaked, more than 1%"
    )
    assert serves(world) == 1


def test_a_rare_failure_while_it_soaks_is_borne(world: World, releases: Releases) -> None:
    world.collected = [windows(releases, failures=1, inferences=199)]
    world.updater.orders.offer(releases.two.order(2, soak_s=60))
    assert world.settle() == "COMMITTED"


def test_a_soak_that_nobody_used_says_so(world: World, releases: Releases) -> None:
    world.updater.orders.offer(releases.two.order(2, soak_s=3))
    assert world.settle() == "COMMITTED"
    assert "no evidence: no inference was seen" in world.journal.because


def test_a_soak_waits_for_the_inferences_that_it_must_see(world: World, releases: Releases) -> None:
    seen = windows(releases, failures=0, inferences=40)
    world.collected = [seen, *[Collected()] * 99, seen, *[Collected()] * 99, seen]
    began = world.now
    world.updater.orders.offer(releases.two.order(2, soak_s=3, min_inferences=100, deadline_s=900))
    assert world.settle() == "COMMITTED"
    assert world.now - began >= 100
    assert "120 inferences seen" in world.journal.because


@pytest.mark.parametrize("deadline_s", [None, 60.0])
def test_a_soak_that_saw_too_few_inferences_by_its_deadline_fails(
    world: World, releases: Releases, deadline_s: float | None
) -> None:
    world.collected = [windows(releases, failures=0, inferences=3)]
    began = world.now
    order = releases.two.order(2, soak_s=5, min_inferences=100, deadline_s=deadline_s)
    world.updater.orders.offer(order)
    assert world.settle() == "ROLLED_BACK"
    assert "no evidence: 3 of 100 inferences seen" in world.journal.because
    assert world.now - began == pytest.approx(deadline_s or 5.0, abs=1.0)
    assert serves(world) == 1


def test_the_deadline_began_with_the_order_also_for_an_agent_that_was_restarted(
    world: World, releases: Releases
) -> None:
    world.updater.orders.offer(releases.two.order(2, soak_s=5, min_inferences=100, deadline_s=60))
    began = world.now

    def restart(state: str) -> None:
        if state == "SOAKING":
            world.on_move = lambda _state: None
            world.now += 40
            raise PowerCutError

    world.on_move = restart
    with pytest.raises(PowerCutError):
        world.settle()
    world.restart()
    assert world.settle() == "ROLLED_BACK"
    assert world.now - began == pytest.approx(60, abs=1.0)


def test_a_process_that_cannot_serve_it_rolls_it_back(world: World, releases: Releases) -> None:
    world.collected = [
        Collected(troubles=(Trouble(model="tiny", because="version 1 keeps serving"),))
    ]
    world.updater.orders.offer(releases.two.order(2, soak_s=60))
    assert world.settle() == "ROLLED_BACK"
    assert "version 1 keeps serving" in world.journal.because


def test_a_model_that_disappears_while_it_soaks_is_rolled_back(
    world: World, releases: Releases
) -> None:
    def vanish(state: str) -> None:
        if state == "SOAKING":
            slot = world.state_dir / "slots" / releases.two.ref.digest
            (slot / "model" / "cpu" / "model.onnx").unlink()

    world.on_move = vanish
    world.updater.orders.offer(releases.two.order(2, soak_s=1))
    assert world.settle() == "ROLLED_BACK"
    assert "model.onnx' is missing" in world.journal.because
    assert serves(world) == 1


def test_the_first_model_of_a_device_that_fails_is_taken_away(
    fresh: World, releases: Releases
) -> None:
    fresh.hook_answers["activating.after"] = [hook_says("refuse")]
    fresh.updater.orders.offer(releases.one.order(1))
    assert fresh.settle() == "ROLLED_BACK"
    assert fresh.pointer is None
    assert list((fresh.state_dir / "slots").iterdir()) == []


@pytest.mark.parametrize("state", UPDATING)
def test_an_agent_that_dies_again_and_again_in_one_state_gives_the_update_up(
    world: World, releases: Releases, state: State
) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=0, max_restarts=3)
    world.boot().start()

    def die(reached: str) -> None:
        if reached == state:
            raise PowerCutError

    world.on_move = die
    if state in GOING_BACK:
        world.hook_answers["activating.after"] = [hook_says("refuse")]
    world.updater.orders.offer(bundle_for(releases, state).order(2, shadow=shadow_for(state)))
    with pytest.raises(PowerCutError):
        world.settle()
    for _ in range(3):
        world.restart()
        assert world.journal.state == state
    world.on_move = lambda _state: None
    world.restart()
    assert world.settle() == ("REJECTED" if state == "OFFERED" else "ROLLED_BACK")
    if state not in GOING_BACK:
        assert "restarted 4 times" in world.journal.because
    assert serves(world) == 1


@pytest.mark.parametrize("state", UPDATING)
def test_a_newer_offer_wins_in_every_state(world: World, releases: Releases, state: State) -> None:
    def offer_newer(reached: str) -> None:
        if reached == state:
            world.on_move = lambda _state: None
            world.updater.orders.offer(releases.three.order(3))

    world.on_move = offer_newer
    if state in GOING_BACK:
        world.hook_answers["activating.after"] = [hook_says("refuse"), hook_says("go")]
    bundle = bundle_for(releases, state)
    world.updater.orders.offer(bundle.order(2, soak_s=5, shadow=shadow_for(state)))
    assert world.settle() == "COMMITTED"
    assert serves(world) == 3
    # A commit of the firmware is not interrupted.
    is_committed = state == "CONFIRMING"
    assert previous(world) == (releases.firm if is_committed else releases.one).ref
    assert world.journal.acted_sequence == 3
    ends = [event.to_state for event in world.events("transition") if event.sequence == 2]
    assert ends[-1] == {"OFFERED": "REJECTED", "CONFIRMING": "COMMITTED"}.get(state, "ROLLED_BACK")


@pytest.mark.parametrize("state", [*UPDATING, "COMMITTED", "REJECTED"])
def test_a_model_that_is_told_to_go_goes_from_every_state(
    world: World, releases: Releases, state: State
) -> None:
    def tell(reached: str) -> None:
        if reached == state:
            world.on_move = lambda _state: None
            world.updater.orders.offer(RemoveModel(sequence=3, issued_at=0.0))

    world.on_move = tell
    if state in (*GOING_BACK, "REJECTED"):
        hook = "activating.after" if state in GOING_BACK else "offered.before"
        world.hook_answers[hook] = [hook_says("refuse"), hook_says("go")]
    bundle = bundle_for(releases, state)
    world.updater.orders.offer(bundle.order(2, soak_s=5, shadow=shadow_for(state)))
    assert world.settle() == "REMOVED"
    assert world.pointer is None
    assert list((world.state_dir / "slots").iterdir()) == []
    assert world.journal.acted_sequence == 3
    # It may come back, but not in an older release than was committed here.
    world.updater.orders.offer(releases.two.order(4))
    assert world.settle() == "COMMITTED"
    world.updater.orders.offer(releases.one.order(5))
    assert world.settle() == "REJECTED"


def test_a_removal_that_is_interrupted_goes_on(world: World) -> None:
    def die(reached: str) -> None:
        if reached == "REMOVING":
            raise PowerCutError

    world.on_move = die
    world.updater.orders.offer(RemoveModel(sequence=2, issued_at=0.0))
    with pytest.raises(PowerCutError):
        world.settle()
    world.on_move = lambda _state: None
    world.restart()
    assert world.settle() == "REMOVED"
    assert world.pointer is None


def test_an_offer_while_a_model_goes_is_taken_when_it_has_gone(
    world: World, releases: Releases
) -> None:
    def offer(reached: str) -> None:
        if reached == "REMOVING":
            world.on_move = lambda _state: None
            world.updater.orders.offer(releases.three.order(3))

    world.on_move = offer
    world.updater.orders.offer(RemoveModel(sequence=2, issued_at=0.0))
    assert world.settle() == "COMMITTED"
    assert "REMOVED" in world.seen
    assert serves(world) == 3
    assert previous(world) is None


def test_a_newer_offer_of_the_same_bundle_is_adopted(world: World, releases: Releases) -> None:
    def offer_again(reached: str) -> None:
        if reached == "STAGED":
            world.on_move = lambda _state: None
            assert world.updater.orders.offer(releases.two.order(7)) == "adopted"

    world.on_move = offer_again
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    assert world.journal.offer is not None
    assert world.journal.offer.sequence == 7
    assert world.probed["cpu"] == 1


def test_the_page_shows_the_diagram_of_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "explanation" / "life-cycle.md"
    assert mermaid() in page.read_text(), "run: python -m edgepack.agent.update.lifecycle"


@pytest.mark.parametrize("state", ["OFFERED", "DOWNLOADING"])
def test_an_agent_killed_while_it_waits_or_downloads_never_gives_the_update_up(
    world: World, releases: Releases, state: State
) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=0, max_restarts=1)
    world.hook_folder = ""
    world.boot().start()

    def die(reached: str) -> None:
        if reached == state:
            raise PowerCutError

    world.on_move = die
    world.updater.orders.offer(releases.two.order(2))
    with pytest.raises(PowerCutError):
        world.settle()
    for _ in range(5):
        world.restart()
        assert (world.journal.state, world.journal.restarts) == (state, 0)
    world.on_move = lambda _state: None
    assert world.settle() == "COMMITTED"


def test_a_stop_in_order_while_a_release_soaks_never_gives_it_up(
    world: World, releases: Releases
) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=0, max_restarts=1)
    world.boot().start()

    def die(reached: str) -> None:
        if reached == "SOAKING":
            raise PowerCutError

    world.on_move = die
    world.updater.orders.offer(releases.two.order(2))
    with pytest.raises(PowerCutError):
        world.settle()
    world.restart()
    for _ in range(5):
        world.updater.suspend()
        world.restart()
        assert (world.journal.state, world.journal.restarts) == ("SOAKING", 1)
    world.restart()  # without a stop before
    assert world.journal.state == "ROLLING_BACK"
    assert "restarted 2 times" in world.journal.because


def test_faults_of_the_agent_count_where_restarts_do_not(world: World, releases: Releases) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=0, max_restarts=1)
    world.hook_folder = ""
    world.boot().start()

    def die(reached: str) -> None:
        if reached == "DOWNLOADING":
            raise PowerCutError

    world.on_move = die
    world.updater.orders.offer(releases.two.order(2))
    with pytest.raises(PowerCutError):
        world.settle()
    for _ in range(2):
        world.restart()
        world.updater.count_fault()
    world.restart()
    assert world.journal.state == "ROLLING_BACK"
