"""The watch's tables times faults: each state and each symptom with each fault of the device.

Derived from the tables: a new row without a scene here fails.
"""

import errno
import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from edgepack.agent.state.holders import Death, Held, Holders
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.telemetry.shadowed import Shadowed
from edgepack.agent.watch.table import ROWS, STATES, Symptom, WatchState
from edgepack.wire.reports import Drift
from tests.simulators.world import WRONG, PowerCutError, World
from tests.unit.agent.conftest import Releases
from tests.unit.agent.test_watch import window

YEAR_S = 365 * 24 * 3600.0
LOOKS = 8
MOST_MOMENTS = 40


def held(releases: Releases, **fields: Any) -> Held:
    return Held(boot="b", pid=7, model="tiny", digest=releases.two.ref.digest, **fields)


def die(world: World, releases: Releases) -> None:
    deaths = tuple(Death(world.now - 100 + second, held(releases)) for second in range(5))
    world.holders = lambda: Holders(deaths=deaths)


def hang(world: World, releases: Releases) -> None:
    one = held(releases, variant="cpu", beat_at=world.now - 60)
    world.holders = lambda: Holders(held=(one,))


def miss_golden(world: World, releases: Releases) -> None:
    one = held(releases, variant="cpu", wrong="sample 3: y differs")
    world.holders = lambda: Holders(held=(replace(one, beat_at=world.now),))


def heal(world: World, releases: Releases) -> None:
    one = held(releases, variant="cpu", healed="sample 3: y differs")
    world.holders = lambda: Holders(held=(replace(one, beat_at=world.now, healed_at=world.now),))


def slow_down(world: World, releases: Releases) -> None:
    pace = Pace()
    for _ in range(60):
        pace = pace.plus(window(releases.two, good=50, length_s=60.0).telemetry[0], 60.0)
    world.paces[releases.two.ref.digest] = pace
    world.said_at_rest = [window(releases.two, good=20, ms=50.0, length_s=10.0)] * LOOKS


def fail(world: World, releases: Releases) -> None:
    world.said_at_rest = [window(releases.two, failed=50)] * LOOKS


def give_nan(world: World, releases: Releases) -> None:
    world.said_at_rest = [window(releases.two, not_finite=50)] * LOOKS


def feed_nan(world: World, releases: Releases) -> None:
    world.said_at_rest = [window(releases.two, bad_inputs=50)] * LOOKS


def disagree(world: World, releases: Releases) -> None:
    shadowed = Shadowed(count=99, spaced=99)
    world.said_at_rest = [Collected(shadowed={releases.two.ref.digest: shadowed})] * LOOKS


def change_driver(world: World, _: Releases) -> None:
    world.facts, world.wrong = replace(world.facts, drivers={"npu": "2"}), {"cpu"}
    world.now += 120.0


def damage(world: World, releases: Releases) -> None:
    slot = world.state_dir / "slots" / releases.two.ref.digest
    (slot / "model" / "cpu" / "model.onnx").unlink(missing_ok=True)


def heat(world: World, _: Releases) -> None:
    world.heat = "cpu0 counts 3 more throttlings for heat"


def harm(world: World, _: Releases) -> None:
    world.drift = Drift(loss=0.5)


def nothing(_: World, __: Releases) -> None:
    pass


MOVED, STAYS = "cpu-vnni", "cpu"
CAUSES: dict[Symptom, tuple[Callable[[World, Releases], None], WatchState, str]] = {
    "process": (die, "DEGRADED", MOVED),
    "hang": (hang, "DEGRADED", MOVED),
    "silence": (nothing, "WATCHING", STAYS),
    "failed": (fail, "DEGRADED", MOVED),
    "not_finite": (give_nan, "DEGRADED", MOVED),
    "inputs": (feed_nan, "DEGRADED", STAYS),
    "golden": (miss_golden, "DEGRADED", MOVED),
    "basis": (change_driver, "DEGRADED", MOVED),
    "damage": (damage, "WATCHING", STAYS),
    "disagreement": (disagree, "WATCHING", STAYS),
    "slow": (slow_down, "DEGRADED", MOVED),
    "harm": (harm, "DEGRADED", STAYS),
    "heat": (heat, "DEGRADED", STAYS),
    "healed": (heal, "DEGRADED", STAYS),
}
"""By symptom: its cause, and the state and variant that follow. Two are evidence in a soak alone;
damage is repaired."""


class Scene(NamedTuple):
    """Measurements before a fault and during it, and the end.

    Attributes:
        before: Failed inferences of the serving variant at each look before the fault.
        during: The same from the fault on.
        state, variant: The end.
    """

    before: int
    during: int
    state: WatchState
    variant: str


SCENES: dict[WatchState, Scene] = {
    "WATCHING": Scene(0, 0, "WATCHING", STAYS),
    "HEALING": Scene(0, LOOKS, "DEGRADED", MOVED),
    "DEGRADED": Scene(LOOKS, 0, "DEGRADED", MOVED),
}

Fault = Callable[[World, int], None]
"""Has the device suffer at the moment or write of a number, from now."""


def kill(world: World, number: int) -> None:
    world.faults.cut_at = world.faults.moments + number


def disk(error: int) -> Fault:
    def suffer(world: World, number: int) -> None:
        faults = world.faults
        faults.error, faults.full_for = error, 3
        faults.full_from = faults.writes + number

    return suffer


def set_clock(ahead_s: float) -> Fault:
    def suffer(world: World, _: int) -> None:
        world.wall_ahead_s = ahead_s

    return suffer


def lose_broker(_: World, __: int) -> None:
    """Nothing here has a broker: events wait in the journal."""


def break_provider(because: str, takes_s: float = 0.0) -> Fault:
    """Return a fault of the provider: no variant of any release passes a probe any more."""

    def suffer(world: World, _: int) -> None:
        world.no_probe_is_right, world.probe_takes_s = because, takes_s

    return suffer


def slow_provider(world: World, _: int) -> None:
    world.probe_takes_s = 20.0
    world.probe_ms = {"cpu": 9.0, "cpu-vnni": 9.0}


def process_of(world: World, **fields: Any) -> Held:
    """Return a process that holds the release that serves."""
    pointer = world.pointer
    assert pointer is not None
    return Held(
        boot="b",
        pid=7,
        model="tiny",
        digest=pointer.digest,
        variant=pointer.choice.chosen,
        beat_at=world.now,
        **fields,
    )


def add(world: World, held: Callable[[], tuple[Held, ...]], *deaths: Death) -> None:
    """Add processes to those that hold the release already."""
    earlier = world.holders

    def read() -> Holders:
        found = earlier()
        return replace(found, held=found.held + held(), deaths=found.deaths + deaths)

    world.holders = read


def lose_application(world: World, _: int) -> None:
    """Kill the application once and for all: one death is no evidence."""
    add(world, tuple, Death(world.now, process_of(world)))


def hang_application(world: World, _: int) -> None:
    """Stop a process during an inference: its heart stands still."""
    one = process_of(world, running_since=world.now)
    add(world, lambda: (one,))


def fork_application(world: World, _: int) -> None:
    add(world, lambda: tuple(replace(process_of(world), pid=pid) for pid in range(100, 164)))


def flood(world: World, _: int) -> None:
    """Have each report of the application arrive a hundred times."""
    world.said_at_rest = [replace(one, telemetry=100 * one.telemetry) for one in world.said_at_rest]


def sense(temperature_c: float | None) -> Fault:
    def suffer(world: World, _: int) -> None:
        world.temperature_c = temperature_c

    return suffer


FAULTS: dict[str, Fault] = {
    "SIGKILL": kill,
    "ENOSPC": disk(errno.ENOSPC),
    "EIO": disk(errno.EIO),
    "EROFS": disk(errno.EROFS),
    "clock a year ahead": set_clock(YEAR_S),
    "clock a year behind": set_clock(-YEAR_S + 2e8),
    "no broker": lose_broker,
    "provider dies": break_provider("the child died of SIGSEGV"),
    "provider hangs": break_provider("no answer within 300 s", takes_s=300.0),
    "provider gives NaN": break_provider("y holds NaN"),
    "provider is wrong": break_provider(WRONG),
    "provider is slow": slow_provider,
    "application dies": lose_application,
    "application hangs": hang_application,
    "application forks": fork_application,
    "application floods": flood,
    "no sensor": sense(None),
    "absurd sensor": sense(1e9),
    "sensor gives NaN": sense(math.nan),
}
BROKEN = {name for name in FAULTS if name.startswith("provider ")} - {"provider is slow"}
"""No probe is right: what serves stays, and this is reported."""


class End(NamedTuple):
    """End of a fault.

    Attributes:
        state: State of the watch.
        variant: The variant that serves; "" if nothing serves.
        release: Its release.
    """

    state: WatchState
    variant: str
    release: int = 2


def end_with(
    end: End, fault: str, symptom: Symptom | None = None, *, has_moved: bool = False
) -> End:
    """Return the end of a symptom on a device that has a fault, too.

    Args:
        end: The end without the fault.
        fault: The fault.
        symptom: The symptom; None for the scene of a state.
        has_moved: Whether another variant serves before the fault.
    """
    if has_moved:  # No probe is needed; a second symptom leads to the previous release.
        return End("DEGRADED", STAYS, 1) if fault == "application hangs" else end
    if fault == "application hangs" and end.variant == STAYS:
        return End("DEGRADED", MOVED)  # The fault is a symptom by itself.
    if fault == "provider hangs" and symptom == "process":
        return End("WATCHING", STAYS)  # The deaths are long ago when the last probe has ended.
    if fault in BROKEN and symptom in ("basis", "damage"):
        return End("DEGRADED", "")
    if fault in BROKEN and end.variant == MOVED:
        return End("DEGRADED", STAYS)
    return end


def variant_of(world: World) -> str:
    return world.pointer.choice.chosen if world.pointer else ""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, releases: Releases) -> Path:
    """Return the state folder of a device that serves release 2, after release 1."""
    folder = tmp_path_factory.mktemp("template") / "state"
    folder.mkdir()
    world = begin(folder, releases)
    for sequence, bundle in enumerate((releases.one, releases.two), 1):
        world.updater.orders.offer(bundle.order(sequence))
        assert world.settle() == "COMMITTED"
    return folder


def begin(folder: Path, releases: Releases) -> World:
    world = World(state_dir=folder, keys=(releases.public_key,))
    for bundle in (releases.one, releases.two):
        world.link.hold(bundle)
    world.models.start()
    return world


def look(world: World, looks: int) -> None:
    """Let the device look so often, through power cuts."""
    for _ in range(looks):
        while True:
            try:
                world.models.advance()
                world.settle()
            except PowerCutError:
                world.faults.cut_at = None
                world.restart()
                continue
            break
        world.check_pointer()
        world.now += world.watch.look_s


def check(world: World, end: End) -> None:
    told = world.journal.watch.told
    assert (told.state, variant_of(world)) == (end.state, end.variant), told
    assert told.acts <= 3
    if not end.variant:
        assert world.pointer is None
        assert any("nothing serves" in one for one in world.models.troubles)
        return
    assert world.pointer is not None
    assert world.pointer.bundle.release == end.release
    assert world.journal.committed == world.pointer
    assert world.models.troubles == ()


@pytest.fixture(scope="module")
def moments(template: Path, tmp_path_factory: pytest.TempPathFactory, releases: Releases) -> int:
    """Return the moments of a healing without a fault, so that each can be tried."""
    folder = tmp_path_factory.mktemp("count") / "state"
    world = begin(shutil.copytree(template, folder), releases)
    fail(world, releases)
    look(world, 3)
    before = world.faults.moments
    look(world, 1)
    assert variant_of(world) == MOVED
    return world.faults.moments - before


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("state", STATES)
def test_each_state_with_each_fault(
    tmp_path: Path,
    template: Path,
    moments: int,
    releases: Releases,
    state: WatchState,
    fault: str,
) -> None:
    scene = SCENES[state]
    assert 5 < moments < MOST_MOMENTS
    is_counted = fault in ("SIGKILL", "ENOSPC", "EIO", "EROFS") and state == "HEALING"
    for number in range(moments if is_counted else 1):
        world = begin(shutil.copytree(template, tmp_path / str(number)), releases)
        world.said_at_rest = [window(releases.two, failed=50)] * scene.before
        look(world, scene.before)
        world.said_at_rest = [window(releases.two, failed=50)] * scene.during
        look(world, 3)
        FAULTS[fault](world, number)
        if fault == "SIGKILL" and state != "HEALING":
            world.restart()
        look(world, LOOKS)
        # Without further reports, the failures of the left variant are no matter any more.
        if scene.state == "DEGRADED" and variant_of(world) == STAYS:
            fail(world, releases)
            look(world, LOOKS)
        end = end_with(End(scene.state, scene.variant), fault, has_moved=scene.before > 0)
        check(world, end)
        told = {event.to_state for event in world.events("watch")}
        assert told == ({"HEALING", "DEGRADED"} if end.state == "DEGRADED" else set())


@pytest.mark.parametrize(("symptom", "fault"), list(itertools.product(ROWS, FAULTS)))
def test_each_symptom_with_each_fault(
    tmp_path: Path, template: Path, releases: Releases, symptom: Symptom, fault: str
) -> None:
    cause, state, variant = CAUSES[symptom]
    world = begin(shutil.copytree(template, tmp_path / "state"), releases)
    look(world, 1)
    world.now += 1000.0
    cause(world, releases)
    FAULTS[fault](world, 2)
    look(world, LOOKS if symptom != "damage" else 5 * LOOKS)
    if variant == MOVED and variant_of(world) == STAYS:  # A restart counts anew.
        cause(world, releases)
        world.now += 1000.0
        look(world, LOOKS)
    end = end_with(End(state, variant), fault, symptom)
    check(world, end)
    told = {event.to_state for event in (*world.events("watch"), *world.events("transition"))}
    is_told = not told.isdisjoint({"DEGRADED", "ROLLED_BACK"})
    assert is_told == (cause not in (nothing, disagree) or end.state == "DEGRADED")


def test_a_power_cut_at_each_moment_of_a_return_to_the_wanted_release(
    tmp_path: Path, template: Path, releases: Releases
) -> None:
    left = begin(shutil.copytree(template, tmp_path / "left"), releases)
    for variant in ("cpu", "cpu-vnni"):
        left.said_at_rest = [window(releases.two, variant=variant, failed=50)] * LOOKS
        look(left, 4)
    assert left.pointer is not None
    assert left.pointer.bundle.release == 1
    for number in range(MOST_MOMENTS):
        world = begin(shutil.copytree(left.state_dir, tmp_path / str(number)), releases)
        look(world, 1)
        world.said_at_rest = [window(releases.one, failed=50)] * LOOKS
        look(world, 3)
        assert world.pointer == left.pointer
        kill(world, number)
        look(world, 2)
        is_over = world.faults.cut_at is not None
        world.faults.cut_at = None
        if variant_of(world) == STAYS and world.pointer == left.pointer:
            world.said_at_rest = [window(releases.one, failed=50)] * LOOKS  # Counted anew.
            look(world, LOOKS)
        check(world, End("DEGRADED", STAYS))
        assert "is to blame" in world.journal.watch.told.because
        if is_over:
            return
    raise AssertionError("no return ends")
