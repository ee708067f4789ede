"""Behaviour of a simulated device: its measurements, and their change by a newer release."""

import random
import re
from collections.abc import Iterable

import msgspec

from edgepack.errors import FleetError
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice, ProbeResult, ProviderFacts
from edgepack.wire.telemetry import Histogram, Telemetry

INFERENCES = 200
"""In one window."""
SPREAD = 0.08
"""By how much devices of a class differ, and the same device from window to window by a third."""
_NOISE = 0.2
_CHANGE = re.compile(r"([A-Za-z0-9_.-]+):([a-z0-9_]+)=([0-9.]{1,20})")
EXAMPLE = "--worse sim-arm-a76:p95=1.3"

PROVIDER = ProviderFacts(
    name="CPUExecutionProvider",
    available=True,
    because="edgepack simulate runs no model",
    is_simulator=True,
)


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a device.

    Attributes:
        median_ms: Of its latencies, milliseconds.
        errors, fallbacks, shadow: 0..1, probability that an inference fails, that the device runs
            on another provider than intended, and that a shadow inference disagrees.
        memory_bytes, temperature_c, drift, golden: As for gates.
        energy_j: Energy of an inference, joules.
        first_token_ms: Median time to the first token of a text, milliseconds.
    """

    median_ms: float
    errors: float = 0.001
    fallbacks: float = 0.0
    shadow: float = 0.02
    memory_bytes: float = 80e6
    temperature_c: float = 55.0
    drift: float = 0.03
    golden: float = 0.01
    energy_j: float = 0.2
    first_token_ms: float = 200.0


HARDWARE = {
    "sim-arm-a76": Behaviour(median_ms=9.0),
    "sim-x86-vnni": Behaviour(median_ms=4.0),
    "sim-hexagon-v73": Behaviour(median_ms=1.5),
}
_FIRST_TOKEN = "first_token"
_TIMES = {
    "p95": "median_ms",
    "p99": "median_ms",
    "memory": "memory_bytes",
    "energy": "energy_j",
    _FIRST_TOKEN: "first_token_ms",
}
_PLUS = {
    **{name: name for name in ("errors", "fallbacks", "golden", "shadow", "drift")},
    "temperature": "temperature_c",
}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a hardware class's measurements by newer releases: `gate` by a number."""

    hardware_class: str
    gate: str
    number: float

    def apply(self, before: Behaviour) -> Behaviour:
        """Time the number where the gate takes a ratio, plus the number otherwise."""
        name = _TIMES.get(self.gate) or _PLUS[self.gate]
        old = getattr(before, name)
        new = old * self.number if self.gate in _TIMES else old + self.number
        return msgspec.structs.replace(before, **{name: new})


def parse_change(text: str) -> Change:
    """Read `sim-arm-a76:p95=1.3`.

    Raises:
        FleetError: The text is not a change.
    """
    found = _CHANGE.fullmatch(text)
    try:
        number = float(found[3]) if found else 0.0
    except ValueError:
        found = None
    if found is None or found[1] not in HARDWARE or found[2] not in _TIMES | _PLUS:
        raise FleetError(
            f"{text[:60]!r} is not a change of a simulated measurement",
            found_in=f"classes: {', '.join(HARDWARE)}; gates: {', '.join(_TIMES | _PLUS)}",
            remedy=EXAMPLE,
        )
    return Change(hardware_class=found[1], gate=found[2], number=number)


class Weather:
    """Weather of all simulated devices: hot as soon as a device runs a later release.

    Args:
        heat: Factor of latencies in the heat.
    """

    def __init__(self, heat: float = 1.0) -> None:
        self._heat, self._is_hot = heat, False

    def begin_heat(self) -> None:
        """Begin the heat, for all devices."""
        self._is_hot = True

    @property
    def factor(self) -> float:
        """Factor of latencies now."""
        return self._heat if self._is_hot else 1.0


class Pretence:
    """Measurements of a device for a model, release by release.

    Args:
        behaviour: Behaviour of its class, for the device's first release.
        changes: Changes with later releases; the device writes texts if one is of first tokens.
        rng: Decides how the device differs from its class, and every number.
        weather: Weather of all devices.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        changes: Iterable[Change],
        rng: random.Random,
        weather: Weather | None = None,
    ) -> None:
        self._rng, self._weather = rng, weather or Weather()
        own = behaviour.median_ms * rng.lognormvariate(0.0, SPREAD)
        self._first = self._later = msgspec.structs.replace(behaviour, median_ms=own)
        self._has_texts = False
        for change in changes:
            self._later = change.apply(self._later)
            self._has_texts |= change.gate == _FIRST_TOKEN
        self._first_release: int | None = None

    def choose(self, bundle: BundleRef) -> Choice:
        """Return the choice of a variant of a release."""
        it = self._of(bundle)
        return Choice(
            wanted=PROVIDER.name,
            chosen="simulated",
            provider=PROVIDER.name,
            because="simulated",
            is_fallback=self._rng.random() < it.fallbacks,
            probes=(
                ProbeResult(
                    variant="simulated",
                    provider=PROVIDER.name,
                    right=True,
                    because="simulated",
                    task_lost=min(1.0, it.golden * self._rng.lognormvariate(0.0, SPREAD)),
                ),
            ),
        )

    def measure(self, bundle: BundleRef, start: float, end: float) -> Telemetry:
        """Return a window of inferences that nobody asked for."""
        it, rng = self._of(bundle), self._rng
        factor = rng.lognormvariate(0.0, SPREAD / 3) * self._weather.factor
        first_tokens = self._record(it.first_token_ms * factor) if self._has_texts else None
        return Telemetry(
            digest=bundle.digest,
            variant="simulated",
            provider=PROVIDER.name,
            window_start=start,
            window_s=end - start,
            latency=self._record(it.median_ms * factor),
            first_tokens=first_tokens,
            failures=sum(rng.random() < it.errors for _ in range(INFERENCES)),
            memory_bytes=round(it.memory_bytes * rng.lognormvariate(0.0, SPREAD / 3)),
            temperature_c=round(it.temperature_c + rng.gauss(0.0, 2.0), 1),
            drift=max(0.0, it.drift + rng.gauss(0.0, 0.01)),
            shadow_count=INFERENCES,
            shadow_agreed=sum(rng.random() >= it.shadow for _ in range(INFERENCES)),
            energy_j=it.energy_j * INFERENCES * factor,
        )

    def _record(self, median_ms: float) -> Histogram:
        """Return the times of a window."""
        recorder = LatencyRecorder()
        for _ in range(INFERENCES):
            recorder.record(self._rng.lognormvariate(0.0, _NOISE) * median_ms)
        return recorder.snapshot()

    def _of(self, bundle: BundleRef) -> Behaviour:
        if self._first_release is None:
            self._first_release = bundle.release
        if bundle.release <= self._first_release:
            return self._first
        self._weather.begin_heat()
        return self._later
