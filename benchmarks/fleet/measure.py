"""Measurement of two rollouts to a number of devices, the second watched, and an idle time."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.fleet.flood import Flood, flood
from benchmarks.fleet.running import RunningFleet, wait_until
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from tests.simulators.bundles import make_bundle

GROUP = "bench"
SETTINGS = RolloutSettings(waves="1,10%,100%", soak_s=1.0, deadline_s=1200.0)
ASK_EVERY_S = 0.5
PATHS = ("/v1/info", "/v1/rollouts", "/v1/devices", "/v1/events")
PAGES = ("/", "/devices", "/models")
"""Of the dashboard."""
IDLE_S = 60.0
SETTLE_S = 12.0
"""After a rollout devices say their news once more."""
EVENTS_A_DEVICE = 5
"""DOWNLOADING, VERIFIED, PROBING, SOAKING, COMMITTED: said by a simulated device of one update."""


ASKED_AT_REST = 50
GIVES_WAY = 10
"""Devices have processors of their own elsewhere."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of an answer without a rollout.

    Attributes:
        p95_ms: 95th percentile, milliseconds.
        cpu_ms: Processor time of the controller for an answer, beyond its idle time.
    """

    p95_ms: float
    cpu_ms: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements with a number of devices.

    Attributes:
        devices: How many.
        rollout_s: How long the first rollout took, seconds.
        cpu_ms_a_device: Processor time of the controller in that rollout, by device.
        watched_cpu_ms_a_device: The same of the second rollout, which is asked for all the time.
        idle_cpu_s_a_minute: The same for a minute in which nothing is rolled out.
        resident_bytes, peak_bytes: Memory of the controller at the end, and at most.
        lost_events: Events of the first rollout that are not in the database.
        telemetry: Outcome of telemetry at full rate.
        p95_ms: Of the API's calls and the dashboard's pages during the second rollout, by path.
        at_rest: The same between the two rollouts, in sequence.
        counters: Messages by outcome.
    """

    devices: int
    rollout_s: float
    cpu_ms_a_device: float
    watched_cpu_ms_a_device: float
    idle_cpu_s_a_minute: float
    resident_bytes: int
    peak_bytes: int
    lost_events: int
    telemetry: Flood
    p95_ms: dict[str, float]
    at_rest: dict[str, Answer]
    counters: dict[str, int]


def measure(devices: int, folder: Path, arguments: tuple[str, ...]) -> Run:
    """Run a fleet with a number of devices.

    Args:
        devices: How many.
        folder: For all files; must be empty.
        arguments: Further arguments of `edgepack fleet serve`.
    """
    private, trust = write_key_pair(generate_key(), folder / "release")
    key = load_private_key(private)
    archives = []
    for release in (1, 2):
        bundle = make_bundle(folder / f"bundle-{release}", key, release=release)
        archives.append(folder / f"{release}.edgepack")
        pack(bundle.folder, archives[-1])
    with RunningFleet(folder, trust, arguments) as fleet:
        fleet.simulate(devices, GROUP, nice=GIVES_WAY)
        rollout_s, cpu_s = _roll_out(fleet, archives[0])
        kept = fleet.ask("SELECT count(*) FROM events WHERE device != '' AND rollout = 'r1'")
        time.sleep(SETTLE_S)
        idle_s = _cost_of(fleet, lambda: time.sleep(IDLE_S))
        at_rest = _ask_at_rest(fleet, "r1", idle_s / IDLE_S)
        asking = Asking(fleet, "r2")
        asking.start()
        _, watched_s = _roll_out(fleet, archives[1])
        asking.stop()
        flooded = flood(fleet, folder / "flood", fleet.client.releases()[0].bundle.digest)
        cost = fleet.cost()
        return Run(
            devices=devices,
            rollout_s=rollout_s,
            cpu_ms_a_device=cpu_s / devices * 1e3,
            watched_cpu_ms_a_device=watched_s / devices * 1e3,
            idle_cpu_s_a_minute=idle_s * 60 / IDLE_S,
            resident_bytes=cost.resident_bytes,
            peak_bytes=cost.peak_bytes,
            telemetry=flooded,
            lost_events=devices * EVENTS_A_DEVICE - kept,
            p95_ms=asking.p95_ms(),
            at_rest=at_rest,
            counters=fleet.client.info().counters,
        )


def _roll_out(fleet: RunningFleet, archive: Path) -> tuple[float, float]:
    """Return seconds of a rollout, and processor time of the controller for the rollout."""
    release = fleet.client.publish(archive)
    started = time.monotonic()

    def run() -> None:
        view = fleet.client.start_rollout(release, Selector(kind="group", group=GROUP), SETTINGS)
        number = view.rollout.removeprefix("r")
        query = f"SELECT count(*) FROM rollouts WHERE number = {number} AND state = 'FINISHED'"
        wait_until(lambda: fleet.ask(query) == 1, f"{view.rollout} is finished")

    cpu_s = _cost_of(fleet, run)
    return time.monotonic() - started, cpu_s


def _asked(fleet: RunningFleet, rollout: str) -> list[tuple[str, Callable[[str], object]]]:
    """Return all requests for views, each with its function."""
    browse = fleet.browse()
    calls = (*PATHS, f"/v1/rollouts/{rollout}")
    pages = (*PAGES, f"/rollouts/{rollout}")
    return [*((path, fleet.get) for path in calls), *((path, browse) for path in pages)]


def _ask_at_rest(fleet: RunningFleet, rollout: str, idle_cpu_share: float) -> dict[str, Answer]:
    found = {}
    for path, ask in _asked(fleet, rollout):
        taken_ms: list[float] = []
        before, began = fleet.cost().cpu_s, time.monotonic()
        for _ in range(ASKED_AT_REST):
            asked = time.monotonic()
            ask(path)
            taken_ms.append((time.monotonic() - asked) * 1e3)
        idle_s = (time.monotonic() - began) * idle_cpu_share
        cpu_s = fleet.cost().cpu_s - before - idle_s
        found[path] = Answer(
            p95_ms=float(np.percentile(taken_ms, 95)),
            cpu_ms=max(0.0, cpu_s) / ASKED_AT_REST * 1e3,
        )
    return found


def _cost_of(fleet: RunningFleet, act: Callable[[], None]) -> float:
    before = fleet.cost().cpu_s
    act()
    return fleet.cost().cpu_s - before


class Asking:
    """User who reads all views, again and again.

    Args:
        fleet: The fleet.
        rollout: The rollout to read once started.
    """

    def __init__(self, fleet: RunningFleet, rollout: str) -> None:
        self._fleet, self._rollout = fleet, rollout
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._taken_ms: dict[str, list[float]] = defaultdict(list)

    def start(self) -> None:
        """Ask on a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the current call."""
        self._stopping.set()
        self._thread.join()

    def p95_ms(self) -> dict[str, float]:
        """Return the 95th percentile of the calls, milliseconds, by path."""
        return {path: float(np.percentile(taken, 95)) for path, taken in self._taken_ms.items()}

    def _run(self) -> None:
        number = self._rollout.removeprefix("r")
        while not self._fleet.ask(f"SELECT count(*) FROM rollouts WHERE number = {number}"):
            self._stopping.wait(ASK_EVERY_S)
        asked = _asked(self._fleet, self._rollout)
        while not self._stopping.is_set():
            for path, ask in asked:
                began = time.monotonic()
                ask(path)
                self._taken_ms[path].append((time.monotonic() - began) * 1e3)
            self._stopping.wait(ASK_EVERY_S)
