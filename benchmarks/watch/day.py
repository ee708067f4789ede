"""24 simulated hours of noise, load, heat and dusk, judged by the watch of the agent.

Clock, inferences and probes are simulated. The updater, the watch's table and the drift windows are
the agent's own.
"""

import math
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.state.holders import Death, Held, Holders
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.drift import DriftWatch
from edgepack.agent.telemetry.pace import Pace, PaceKeeper
from edgepack.bundle.features import CONFIDENCE, FeatureSum
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.bundle.metadata import Feature
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Telemetry
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.manifests import CPU
from tests.simulators.world import World

DAY_S = 24 * 3600.0
RATE = 2.0
"""Inferences a second."""
BASE_MS = 4.0
SKETCHED = 5
"""Sketched inferences in a look of 5 s."""
FEATURE = Feature(tensor="y", name=CONFIDENCE, words=CONFIDENCE, mean=0.9, spread=0.1, samples=300)


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Disturbances of a device without a fault of its release.

    Attributes:
        title: In words.
        load_bursts: Bursts of load a day: 20 s to 10 min, 1.3 to 6 times as slow. Probes are as
            slow, since the load is the whole device's.
        heat: Greatest factor of the latency at noon.
        failed: Share of failed inferences.
        failing_bursts: Interruptions a day of up to 12 s in which every inference fails.
        restarts: Deaths of the application a day, at any time.
        pauses: Pauses a day of 10 minutes to an hour without inferences.
        stalls: Heartbeats a day that come up to 10 s late.
        dusk: Fall of the mean confidence from noon to night, standard deviations.
    """

    title: str
    load_bursts: int = 0
    heat: float = 1.0
    failed: float = 0.0
    failing_bursts: int = 0
    restarts: int = 0
    pauses: int = 0
    stalls: int = 0
    dusk: float = 0.0


NOISES = (
    Noise(title="heavy-tailed latencies, correlated over 50 minutes"),
    Noise(title="load: 12 bursts of 20 s to 10 min, 1.3 to 6 times as slow", load_bursts=12),
    Noise(title="heat: up to 1.8 times as slow at noon", heat=1.8),
    Noise(
        title="0.5 % failures, 6 interruptions of up to 12 s, 2 restarts, 3 pauses, 20 stalls",
        failed=0.005,
        failing_bursts=6,
        restarts=2,
        pauses=3,
        stalls=20,
    ),
    Noise(title="dusk: the confidence falls by 0.2 standard deviations", dusk=0.2),
    Noise(
        title="all of these together",
        load_bursts=12,
        heat=1.8,
        failed=0.005,
        failing_bursts=6,
        restarts=2,
        pauses=3,
        stalls=20,
        dusk=0.2,
    ),
)


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a simulated day.

    Attributes:
        title: The noise.
        hours: Simulated time.
        inferences: Simulated inferences.
        moves: Changes of the serving variant or release: false actions.
        acts: Begins of an action, of which some find nothing better.
        reports: Reported symptoms, by symptom.
    """

    title: str
    hours: float
    inferences: int
    moves: int
    acts: int
    reports: dict[str, int]


class _Device(World):
    """A device whose paces are those of the agent."""

    ledger: PaceKeeper

    def _pace_of(self, digest: str, variant: str) -> Pace:
        return self.ledger.of(digest, variant)


class _Spans:
    """Times within which a disturbance lasts."""

    def __init__(
        self, rng: np.random.Generator, count: int, shortest_s: float, longest_s: float
    ) -> None:
        starts = rng.uniform(0, DAY_S, count)
        lengths = np.exp(rng.uniform(math.log(shortest_s), math.log(longest_s), count))
        self.spans = sorted(zip(starts, starts + lengths, strict=True))

    def at(self, time_s: float) -> int | None:
        """Return the number of the span at a time; None outside."""
        return next((n for n, (a, b) in enumerate(self.spans) if a <= time_s < b), None)


def simulate_day(noise: Noise, seed: int, hours: float = 24.0) -> Day:
    """Simulate a device for some hours.

    Args:
        noise: Its disturbances.
        seed: Seed of all draws.
        hours: Simulated time.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as name:
        return _simulate(noise, np.random.default_rng(seed), hours, Path(name))


def _simulate(noise: Noise, rng: np.random.Generator, hours: float, folder: Path) -> Day:
    device, release = _commit(folder)
    look_s = device.watch.look_s
    loads = _Spans(rng, noise.load_bursts, 20.0, 600.0)
    factors = np.exp(rng.uniform(math.log(1.3), math.log(6.0), noise.load_bursts))
    failing = _Spans(rng, noise.failing_bursts, 1.0, 12.0)
    pauses = _Spans(rng, noise.pauses, 600.0, 3600.0)
    stalls = _Spans(rng, noise.stalls, 1.0, 10.0)
    restarts = sorted(rng.uniform(0, DAY_S, noise.restarts))
    drift, key = DriftWatch(clock=lambda: device.now), (release.ref.digest, "cpu", CPU)
    deaths: tuple[Death, ...] = ()
    first, slow, inferences, moves, acts = device.now, 0.0, 0, 0, 0
    reports: dict[str, int] = {}
    held = Held(boot="b", pid=7, model="tiny", digest=release.ref.digest, variant="cpu")
    serving, told = device.pointer, device.journal.watch.told
    per_block = 300.0 / look_s
    for look in range(int(hours * 3600 / look_s)):
        at = look * look_s
        if look % int(per_block) == 0:
            slow = math.exp(-1 / 10) * slow + rng.normal(0, 0.06 * math.sqrt(1 - math.exp(-0.2)))
        noon = max(0.0, math.sin(2 * math.pi * (at / DAY_S - 0.25)))
        burst = loads.at(at)
        factor = math.exp(slow) * (1 + (noise.heat - 1) * noon)
        factor *= 1.0 if burst is None else float(factors[burst])
        device.probe_ms = dict.fromkeys(("cpu", "cpu-vnni"), factor)
        if pauses.at(at) is None:
            failed_share = 1.0 if failing.at(at) is not None else noise.failed
            window = _window(rng, release, factor, failed_share, look_s)
            inferences += window.latency.count + window.failures
            device.said_at_rest = [Collected(telemetry=(window,))]
            device.ledger.add([window])
            light = 1.0 - noon if noise.dusk else 0.0
            means = FEATURE.mean - noise.dusk * FEATURE.spread * light
            found = rng.normal(means, FEATURE.spread, SKETCHED).clip(0.0, 1.0)
            device.drift = drift.add(
                key, [FeatureSum(feature=FEATURE, count=SKETCHED, total=float(found.sum()))]
            )
        while restarts and restarts[0] <= at:
            restarts.pop(0)
            deaths = (*deaths, Death(device.now, held))
        late_s = 10.0 if stalls.at(at) is not None else 0.5
        alive = msgspec.structs.replace(held, beat_at=device.now - late_s)
        recent = tuple(one for one in deaths if device.now - one.at < 3600)
        device.holders = lambda alive=alive, recent=recent: Holders(held=(alive,), deaths=recent)
        device.models.advance()
        device.settle()
        moves += device.pointer != serving
        now = device.journal.watch.told
        acts += max(0, now.acts - told.acts)
        if now.state == "DEGRADED" and (told.state, told.symptom) != (now.state, now.symptom):
            reports[now.symptom] = reports.get(now.symptom, 0) + 1
        serving, told = device.pointer, now
        device.now = first + at + look_s
    return Day(
        title=noise.title,
        hours=hours,
        inferences=inferences,
        moves=moves,
        acts=acts,
        reports=reports,
    )


def _commit(folder: Path) -> tuple[_Device, ExampleBundle]:
    """Return a device that serves release 2, which has two variants, after release 1."""
    private, _ = write_key_pair(generate_key(), folder / "release")
    key = load_private_key(private)
    (folder / "state").mkdir()
    device = _Device(state_dir=folder / "state", keys=(key.public_key(),))
    device.ledger = PaceKeeper(device.watch.interval_s)
    for number, variants in ((1, ("cpu",)), (2, ("cpu", "cpu-vnni"))):
        bundle = make_bundle(folder / str(number), key, release=number, variants=variants)
        device.link.hold(bundle)
        device.updater.orders.offer(bundle.order(number))
        if device.settle() != "COMMITTED":
            raise RuntimeError(f"release {number} was not committed: {device.journal.because}")
    return device, bundle


def _window(
    rng: np.random.Generator,
    release: ExampleBundle,
    factor: float,
    failed_share: float,
    length_s: float,
) -> Telemetry:
    """Draw the report of a look: latencies are lognormal, 1 % has a Pareto tail."""
    count = int(rng.poisson(RATE * length_s))
    failed = int(rng.binomial(count, failed_share))
    taken = BASE_MS * factor * rng.lognormal(0.0, 0.2, count - failed)
    taken[rng.random(len(taken)) < 0.01] *= 1 + rng.pareto(1.5)
    latency = LatencyRecorder()
    for one in taken:
        latency.record(float(one))
    return Telemetry(
        digest=release.ref.digest,
        variant="cpu",
        provider=CPU,
        window_start=0.0,
        window_s=length_s,
        latency=latency.snapshot(),
        failures=failed,
    )
