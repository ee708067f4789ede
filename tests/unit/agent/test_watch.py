"""The watch after the commit: which evidence, which action, and what a restart remembers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from edgepack.agent.broker.report import Recent, failing_releases
from edgepack.agent.config import WatchConfig
from edgepack.agent.state.holders import Death, Held, Holders
from edgepack.agent.telemetry.collector import Collected, Trouble
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.update.journal import WatchNote
from edgepack.agent.update.work import InlineWorker, Job, Work
from edgepack.agent.watch.table import ROWS, STATES, Symptom, WatchState, markdown, mermaid
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.orders import RemoveModel
from edgepack.wire.reports import Drift, Outcomes, Watched
from edgepack.wire.telemetry import Telemetry
from tests.simulators.bundles import ExampleBundle
from tests.simulators.world import World, hook_says
from tests.unit.agent.conftest import Releases

NOTHING = Collected()


def window(
    bundle: ExampleBundle,
    *,
    variant: str = "cpu",
    good: int = 0,
    failed: int = 0,
    not_finite: int = 0,
    bad_inputs: int = 0,
    ms: float = 1.0,
    length_s: float = 5.0,
    start: float = 0.0,
) -> Collected:
    """Return what processes report: finished inferences include those that are not finite.

    A window without a start ends as the world collects it.
    """
    latency = LatencyRecorder()
    for _ in range(good + not_finite + bad_inputs):
        latency.record(ms)
    told = Telemetry(
        digest=bundle.ref.digest,
        variant=variant,
        provider="CPUExecutionProvider",
        window_start=start,
        window_s=length_s,
        latency=latency.snapshot(),
        failures=failed,
        not_finite=not_finite,
        bad_inputs=bad_inputs,
        bad_input="image" if bad_inputs else "",
    )
    return Collected(telemetry=(told,))


def watch(world: World, told: Collected = NOTHING, *, turns: int = 6) -> Watched:
    """Let the device collect the same report at each of some looks; return the watch's state."""
    world.said_at_rest = [told] * turns
    for _ in range(turns):
        world.models.advance()
        world.settle()
        world.now += world.watch.look_s
    return world.journal.watch.told


@pytest.fixture
def two(world: World, releases: Releases) -> World:
    """Return a device with release 2, which has two variants, and release 1 before it."""
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    assert world.journal.watch == WatchNote()
    return world


def serves(world: World) -> tuple[int, str]:
    assert world.pointer is not None
    return world.pointer.bundle.release, world.pointer.choice.chosen


def test_every_symptom_and_state_has_a_row_and_leads_only_to_states() -> None:
    assert set(ROWS) == set(get_args(Symptom))
    assert set(STATES) == set(get_args(WatchState))
    for row in STATES.values():
        for after in (row.found, row.reported, row.done, row.calm, row.restart):
            assert after is None or after in STATES


def test_the_page_shows_the_tables() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "watch.md").read_text()
    for shown in (mermaid(), markdown()):
        assert shown in page, "run: python -m edgepack.agent.watch.table"


@pytest.mark.parametrize("kind", ["failed", "not_finite"])
def test_bad_inferences_lead_to_the_next_variant_then_the_previous_release_and_back_if_shared(
    two: World, releases: Releases, kind: str
) -> None:
    assert serves(two) == (2, "cpu")
    bad: dict[str, Any] = {kind: 50}
    told = watch(two, window(releases.two, **bad))
    assert serves(two) == (2, "cpu-vnni")
    assert (told.state, told.symptom) == ("DEGRADED", kind)
    assert (told.wanted, told.chosen) == ("cpu of 1.2.0", "cpu-vnni of 1.2.0")
    assert "200 of 200 real inferences" in told.because
    assert two.seen[-1] == "COMMITTED"

    told = watch(two, window(releases.two, variant="cpu-vnni", **bad))
    assert serves(two) == (1, "cpu")
    assert (told.wanted, told.chosen) == ("cpu of 1.2.0", "cpu of 1.1.0")
    assert two.journal.state == "ROLLED_BACK"
    assert two.journal.committed == two.pointer
    assert "cpu of 1.1.0 serves instead of cpu-vnni of 1.2.0" in two.journal.because

    told = watch(two, window(releases.one, **bad))
    assert serves(two) == (2, "cpu")
    assert (two.journal.state, two.journal.committed) == ("COMMITTED", two.pointer)
    assert (told.state, told.symptom, told.wanted) == ("DEGRADED", kind, told.chosen)
    assert f"{ROWS[told.symptom].shared} is to blame" in told.because  # type: ignore[index]
    for version in ("1.2.0", "1.1.0"):
        assert f"with {version}: 200 of 200 real inferences" in told.because
    probed, events = two.probed.copy(), len(two.events("watch"))
    two.restart()
    again = watch(two, window(releases.two, **bad), turns=20)
    assert (two.probed, len(two.events("watch"))) == (probed, events), "it is tried and told once"
    assert again.because == told.because
    assert [event.to_state for event in two.events("watch")] == [
        *("HEALING", "DEGRADED", "HEALING", "HEALING")
    ]
    assert watch(two, window(releases.two, good=500), turns=150).state == "WATCHING"
    told = watch(two, window(releases.two, **bad), turns=150)
    assert (told.state, serves(two)) == ("DEGRADED", (2, "cpu"))
    assert "is to blame" in told.because, "the watch remembers"


def test_probes_that_take_minutes_are_not_repeated_each_minute(
    two: World, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of the device are compared each minute meanwhile."""

    class SlowJob(Job):
        def __init__(self, work: Work) -> None:
            super().__init__(work)
            self.do()
            self.ends = two.now + 45.0

        @property
        def is_done(self) -> bool:
            return two.now >= self.ends

    monkeypatch.setattr(InlineWorker, "begin", lambda _, work: SlowJob(work))
    two.wrong = {"cpu-vnni"}
    two.probed.clear()
    watch(two, window(releases.two, failed=50), turns=100)
    assert serves(two) == (1, "cpu")
    assert two.probed == {"cpu-vnni": 1, "cpu": 1}


@pytest.mark.parametrize(
    "told",
    [
        {"good": 1000, "failed": 9},
        {"good": 10},
        {"failed": 1},  # four in all
        {"good": 100, "not_finite": 1},
    ],
)
def test_little_evidence_changes_nothing(
    two: World, releases: Releases, told: dict[str, int]
) -> None:
    assert watch(two, window(releases.two, **told), turns=4) == Watched()  # type: ignore[arg-type]
    assert serves(two) == (2, "cpu")


def test_a_burst_of_failures_that_is_over_soon_changes_nothing(
    two: World, releases: Releases
) -> None:
    watch(two, window(releases.two, failed=500), turns=3)
    assert watch(two, window(releases.two, good=500), turns=3) == Watched()


def test_inputs_that_are_not_finite_are_reported_and_condemn_no_release(
    two: World, releases: Releases
) -> None:
    told = watch(two, window(releases.two, good=50, bad_inputs=50))
    assert (told.state, told.symptom) == ("DEGRADED", "inputs")
    assert "in the input 'image'" in told.because
    assert serves(two) == (2, "cpu")
    two.collected = [window(releases.three, bad_inputs=50)]
    two.updater.orders.offer(releases.three.order(3))
    assert two.settle() == "COMMITTED", "a soak tolerates such inputs, too"


def test_reports_that_waited_are_as_old_as_their_windows(two: World, releases: Releases) -> None:
    two.now += 480.0
    waited = window(releases.two, good=174, not_finite=500, start=two.now - 480.0)
    two.restart()  # The ledger begins anew.
    assert watch(two, waited) == Watched()
    two.said_at_rest = [window(releases.two, not_finite=50)]
    two.models.advance()
    two.now += 480.0  # An update of another model is under way.
    burst = window(releases.two, not_finite=50, start=two.now - 475.0)
    assert watch(two, burst) == Watched(), "it lasted 5 s"
    assert serves(two) == (2, "cpu")


def test_failures_that_end_by_themselves_are_reported_as_over(
    world: World, releases: Releases
) -> None:
    assert watch(world, window(releases.one, failed=50)).state == "DEGRADED"
    told = watch(world, window(releases.one, good=500), turns=150)
    assert (told.state, told.symptom) == ("WATCHING", "")
    assert serves(world) == (1, "cpu")


def test_an_order_begins_a_new_watch_and_a_removal_ends_it(two: World, releases: Releases) -> None:
    watch(two, window(releases.two, failed=50))
    two.updater.orders.offer(releases.three.order(3))
    assert two.settle() == "COMMITTED"
    assert two.journal.watch.told == Watched()
    assert [*two.journal.watch.left] == [f"{releases.two.ref.digest} cpu"], "for a way back"
    two.updater.orders.offer(RemoveModel(sequence=4, issued_at=0.0))
    assert two.settle() == "REMOVED"
    assert watch(two) == Watched()
    assert two.journal.watch == WatchNote()


def test_an_order_wins_over_a_variant_that_is_left(two: World, releases: Releases) -> None:
    two.said_at_rest = [window(releases.two, failed=50)] * 3
    for _ in range(3):
        two.models.advance()
        two.now += two.watch.look_s
    two.updater.orders.offer(releases.three.order(3))
    assert two.settle() == "COMMITTED"
    assert serves(two) == (3, "cpu")


def test_the_number_of_actions_is_bounded_also_after_restarts(
    two: World, releases: Releases
) -> None:
    two.watch = WatchConfig(max_acts=1)
    two.restart()
    watch(two, window(releases.two, failed=50))
    two.restart()
    told = watch(two, window(releases.two, variant="cpu-vnni", failed=50))
    assert serves(two) == (2, "cpu-vnni")
    assert (told.state, told.acts, told.symptom) == ("DEGRADED", 1, "failed")


def test_processes_that_die_while_they_hold_a_committed_release_are_evidence(
    two: World, releases: Releases
) -> None:
    held = Held(boot="b", pid=7, model="tiny", digest=releases.two.ref.digest)
    watch(two, turns=1)
    two.now += 1000
    deaths = tuple(Death(two.now + n, held) for n in range(5))
    two.holders = lambda: Holders(deaths=deaths)
    two.now += 10
    assert watch(two, turns=1).symptom == "process"
    assert serves(two) == (2, "cpu-vnni")


def test_an_application_that_dies_under_any_release_is_reported_and_the_wanted_release_returns(
    world: World, releases: Releases
) -> None:
    for sequence, bundle in enumerate((releases.two, releases.three), 2):
        world.updater.orders.offer(bundle.order(sequence))
        assert world.settle() == "COMMITTED"
    watch(world, turns=1)
    world.now += 1000
    deaths: list[Death] = []
    world.holders = lambda: Holders(deaths=tuple(deaths))
    served = [serves(world)]
    for _ in range(40):
        assert world.pointer is not None
        digest, variant = world.pointer.digest, world.pointer.choice.chosen
        held = Held(boot="b", pid=7, model="tiny", digest=digest, variant=variant)
        deaths.append(Death(world.now, held))
        told = watch(world, turns=1)
        if serves(world) != served[-1]:
            served.append(serves(world))
    assert served == [(3, "cpu"), (2, "cpu"), (3, "cpu")]
    assert (told.state, told.symptom, told.acts) == ("DEGRADED", "process", 2)
    assert "the application is to blame" in told.because


def test_deaths_that_moved_a_variant_do_not_spare_the_next_variant(
    two: World, releases: Releases
) -> None:
    watch(two, turns=1)
    two.now += 1000
    deaths: list[Death] = []
    two.holders = lambda: Holders(deaths=tuple(deaths))
    opening = Held(boot="b", pid=7, model="tiny", opening=releases.two.ref.digest)
    for served in ((2, "cpu-vnni"), (1, "cpu")):
        deaths += [Death(two.now - 1, opening)] * 4
        watch(two, turns=1)
        assert serves(two) == served


def test_heat_and_harm_are_reported_and_no_release_is_left_for_them(
    two: World, releases: Releases
) -> None:
    two.heat = "cpu0 counts 3 more throttlings for heat"
    assert watch(two).symptom == "heat"
    two.heat, two.drift = "", Drift(loss=0.2)
    assert watch(two).symptom == "harm"
    two.drift = Drift(difference=9.0)
    assert watch(two, turns=20).state == "WATCHING"
    assert serves(two) == (2, "cpu")


def slow_down(
    world: World, releases: Releases, *, ms: float, probe_ms: Mapping[str, float]
) -> Watched:
    """Let release 2 take `ms` for half a minute after an hour at 1 ms; return the watch's state."""
    pace = Pace()
    for _ in range(60):
        pace = pace.plus(window(releases.two, good=50, length_s=60.0).telemetry[0], 60.0)
    world.paces[releases.two.ref.digest] = pace
    world.probe_ms = dict(probe_ms)
    return watch(world, slow(releases, ms), turns=8)


def slow(releases: Releases, ms: float = 50.0) -> Collected:
    return window(releases.two, good=20, ms=ms, length_s=10.0)


@pytest.mark.parametrize(
    ("ms", "probe_ms", "now"),
    [
        (50.0, {}, (2, "cpu-vnni")),  # real inputs are slow
        (50.0, {"cpu": 50.0}, (2, "cpu-vnni")),  # the serving variant is slow
        (50.0, {"cpu": 3.0, "cpu-vnni": 3.0}, (2, "cpu-vnni")),  # real inputs, on a busy device
        (50.0, {"cpu": 50.0, "cpu-vnni": 40.0}, (2, "cpu")),  # the whole device is
        (5.0, {}, (2, "cpu")),  # not grossly, so not in half a minute
    ],
)
def test_a_release_that_becomes_slow_is_left_for_a_faster_one_alone(
    two: World, releases: Releases, ms: float, probe_ms: dict[str, float], now: tuple[int, str]
) -> None:
    told = slow_down(two, releases, ms=ms, probe_ms=probe_ms)
    assert serves(two) == now
    assert told.symptom == ("slow" if ms > 10 else "")
    if told.symptom:
        assert "50.0 times as long as before" in told.because
    assert now[1] == "cpu-vnni" or not told.symptom or "takes 40 ms" in told.because


@pytest.mark.parametrize("since", [(), (1.0,)], ids=["no inference", "fast"])
def test_a_burst_of_load_that_ends_before_the_probe_changes_nothing(
    two: World, releases: Releases, since: tuple[float, ...]
) -> None:
    slow_down(two, releases, ms=1.0, probe_ms={})
    watch(two, slow(releases), turns=3)
    assert two.journal.watch.told.state == "HEALING"
    for _ in range(14):
        watch(two, *(slow(releases, ms) for ms in since), turns=1)
    assert serves(two) == (2, "cpu")
    passed = "it passed while other variants were probed"
    assert any(passed in event.because for event in two.events("watch"))
    assert two.journal.watch.told.acts == 0


def test_what_was_slow_while_the_device_was_busy_is_tried_again_after_waits_that_double(
    two: World, releases: Releases
) -> None:
    told = slow_down(two, releases, ms=50.0, probe_ms={"cpu": 50.0, "cpu-vnni": 40.0})
    assert (serves(two), told.state, told.acts) == ((2, "cpu"), "DEGRADED", 0)
    tries = two.probed["cpu-vnni"]
    for wait_s in (300.0, 600.0):
        for so_far in (0.0, wait_s - 100.0):
            two.now += so_far
            watch(two, slow(releases), turns=3)
            assert two.probed["cpu-vnni"] == tries
        two.now += 100.0
        watch(two, slow(releases), turns=3)
        tries += 1
        assert two.probed["cpu-vnni"] == tries
    two.probe_ms = {}
    two.now += 1200.0
    assert watch(two, slow(releases), turns=3).chosen == "cpu-vnni of 1.2.0"


def test_a_release_whose_next_variant_is_as_slow_is_left_for_the_previous_release(
    two: World, releases: Releases
) -> None:
    assert slow_down(two, releases, ms=50.0, probe_ms={}).chosen == "cpu-vnni of 1.2.0"
    own = window(releases.two, variant="cpu-vnni", good=200, ms=50.0, length_s=60.0).telemetry[0]
    two.paces[f"{releases.two.ref.digest} cpu-vnni"] = Pace().plus(own, 60.0)
    slow = window(releases.two, variant="cpu-vnni", good=20, ms=50.0, length_s=10.0)
    told = watch(two, slow, turns=8)
    assert serves(two)[0] == 1
    assert (told.state, told.symptom, told.wanted) == ("DEGRADED", "slow", "cpu of 1.2.0")
    told = watch(two, window(releases.one, failed=50))
    assert serves(two) == (2, "cpu"), "a slow variant is better than failures"
    assert (told.symptom, told.chosen) == ("failed", "cpu of 1.2.0")


def test_heat_explains_slowness(two: World, releases: Releases) -> None:
    two.heat = "cpu0 counts 3 more throttlings for heat"
    assert slow_down(two, releases, ms=50.0, probe_ms={}).symptom == "heat"
    two.heat = ""
    slow = window(releases.two, good=20, ms=50.0, length_s=60.0)
    assert watch(two, slow, turns=3).symptom == "heat", "it cools down"
    assert serves(two) == (2, "cpu")


def test_a_driver_that_changes_while_the_agent_runs_has_the_release_probed_again(
    two: World, releases: Releases
) -> None:
    watch(two)
    two.facts, two.wrong = replace(two.facts, drivers={"npu": "2"}), {"cpu"}
    told = watch(two, turns=14)
    assert serves(two) == (2, "cpu-vnni")
    assert (told.state, told.symptom, told.wanted) == ("DEGRADED", "basis", "cpu of 1.2.0")
    assert "driver npu: 2 instead of none" in told.because
    two.facts, two.wrong = replace(two.facts, drivers={"npu": "3"}), set()
    assert watch(two, turns=14) == Watched()
    assert serves(two) == (2, "cpu")


def test_damage_is_reported_until_it_is_repaired(two: World, releases: Releases) -> None:
    model = two.state_dir / "slots" / releases.two.ref.digest / "model" / "cpu" / "model.onnx"
    model.unlink()
    told = watch(two)
    assert two.journal.state == "COMMITTED"
    assert (told.state, told.symptom) == ("DEGRADED", "damage")
    assert "model.onnx" in told.because
    assert model.exists()
    golden = model.parents[2] / "golden" / "golden.npz"
    for damaged in (golden, model):
        damaged.unlink()
        because = watch(two).because
        assert damaged.name in because
        assert because.count("serves again, after") == 1
    assert watch(two, turns=20).state == "WATCHING"


def model_file(world: World, bundle: ExampleBundle, variant: str = "cpu") -> Path:
    return world.state_dir / "slots" / bundle.ref.digest / "model" / variant / "model.onnx"


def flip(path: Path) -> bytes:
    """Change a byte of a file; return the content before."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


CANNOT_OPEN = replace(NOTHING, troubles=(Trouble(model="tiny", because="it cannot be opened"),))


def roll_back(world: World, releases: Releases) -> None:
    """Let both variants of release 2 give NaN, so that the watch returns to release 1."""
    for variant in ("cpu", "cpu-vnni"):
        watch(world, window(releases.two, variant=variant, not_finite=50))
    assert serves(world) == (1, "cpu")


def test_damage_after_a_rollback_by_the_watch_is_reported_and_repaired(
    two: World, releases: Releases
) -> None:
    roll_back(two, releases)
    file = model_file(two, releases.one)
    content, before = flip(file), len(two.events("watch"))
    told = watch(two, CANNOT_OPEN, turns=2)
    assert (told.symptom, told.wanted) == ("damage", "cpu of 1.2.0")
    assert two.events("watch")[before].because.startswith("the slot of 1.1.0")
    assert file.read_bytes() == content
    assert serves(two) == (1, "cpu")
    assert all(event.bundle != "tiny-1.2.0" for event in two.events("transition")[-4:])
    told = watch(two, turns=20)
    assert (told.symptom, told.chosen) == ("not_finite", "cpu of 1.1.0"), "the move is told again"


def test_an_intact_variant_takes_over_at_once_until_the_damaged_variant_is_fetched(
    two: World, releases: Releases
) -> None:
    seen: dict[str, tuple[int, str]] = {}

    def on_move(state: str) -> None:
        seen.setdefault(state, serves(two))

    two.on_move = on_move
    flip(model_file(two, releases.two, "cpu-vnni"))
    watch(two, CANNOT_OPEN, turns=4)
    assert seen["DOWNLOADING"] == (2, "cpu"), "only the other variant was damaged"

    seen.clear()
    file = model_file(two, releases.two)
    content = flip(file)
    told = watch(two, CANNOT_OPEN, turns=4)
    assert seen["DOWNLOADING"] == (2, "cpu-vnni")
    moved = two.events("watch")[-1].because
    assert "cpu-vnni of 1.2.0 serves instead of cpu of 1.2.0: 'model/cpu/model.onnx'" in moved
    assert file.read_bytes() == content
    assert serves(two) == (2, "cpu")
    assert (told.symptom, told.wanted, told.chosen) == ("damage", told.chosen, "cpu of 1.2.0")
    assert "cpu of 1.2.0 serves again" in told.because
    assert watch(two, turns=20).state == "WATCHING"


def test_a_refused_repair_of_a_file_of_the_right_size_is_tried_again(
    world: World, releases: Releases
) -> None:
    file = model_file(world, releases.one)
    content = flip(file)
    world.hook_answers = {"offered.before": [hook_says("refuse"), hook_says("go")]}
    told = watch(world, CANNOT_OPEN, turns=3)
    assert (world.journal.state, told.symptom) == ("REJECTED", "damage")
    assert file.read_bytes() != content
    assert watch(world, turns=40).state == "WATCHING"
    assert file.read_bytes() == content


def test_a_failed_order_makes_no_bad_release_good(two: World, releases: Releases) -> None:
    roll_back(two, releases)
    left = two.journal.watch.left
    two.collected = [window(releases.three, failed=50)]
    two.updater.orders.offer(releases.three.order(3, soak_s=10.0))
    assert two.settle() == "ROLLED_BACK"
    assert serves(two) == (1, "cpu")
    assert two.journal.watch.left == left
    told = watch(two, window(releases.one, failed=50))
    assert serves(two) == (1, "cpu")
    assert "nothing better is here" in told.because
    two.updater.orders.offer(releases.two.order(4))
    assert two.settle() == "COMMITTED"
    assert serves(two) == (2, "cpu"), "an order for the release tries every variant"
    assert two.journal.watch == WatchNote()


def test_a_repair_does_not_return_to_a_variant_that_is_left(two: World, releases: Releases) -> None:
    slow_down(two, releases, ms=50.0, probe_ms={})
    left = two.journal.watch.left
    assert serves(two) == (2, "cpu-vnni")
    model_file(two, releases.two, "cpu-vnni").unlink()
    watch(two, turns=20)
    assert model_file(two, releases.two, "cpu-vnni").exists()
    assert serves(two) == (2, "cpu-vnni")
    assert two.journal.watch.left == left
    assert two.pointer is not None
    assert "50.0 times as long" in two.pointer.choice.rejected["cpu"]
    told = two.journal.watch.told
    assert (told.state, told.symptom, told.chosen) == ("DEGRADED", "slow", "cpu-vnni of 1.2.0")


def test_the_newest_symptom_is_reported_after_a_move(two: World, releases: Releases) -> None:
    watch(two, window(releases.two, failed=50))
    two.heat = "cpu0 counts 3 more throttlings for heat"
    told = watch(two)
    assert (told.symptom, told.wanted, told.chosen) == (
        *("heat", "cpu of 1.2.0"),
        "cpu-vnni of 1.2.0",
    )
    two.heat = ""
    assert watch(two, turns=20).symptom == "failed"


def test_a_rollback_by_the_watch_is_logged_as_a_warning_and_advises_no_way_to_the_left_release(
    two: World, releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    roll_back(two, releases)
    (said,) = (one for one in caplog.records if "to=ROLLED_BACK" in one.getMessage())
    assert said.levelname == "WARNING"
    outcomes = Outcomes(inferences=100, failed=50)
    (failing,) = failing_releases(two.models, lambda _digest: Recent(outcomes)).values()
    assert failing is not None
    assert failing.previous == ""


def test_failures_in_a_soak_advise_the_release_that_a_rollback_returns_to(
    two: World, releases: Releases
) -> None:
    told: list[str] = []

    def note(state: str) -> None:
        if state == "SOAKING":
            outcomes = Outcomes(inferences=100, failed=50)
            found = failing_releases(two.models, lambda _digest: Recent(outcomes)).values()
            told.extend(one.previous for one in found if one is not None)

    two.on_move = note
    two.updater.orders.offer(releases.three.order(3))
    assert two.settle() == "COMMITTED"
    assert told == ["1.2.0"]
