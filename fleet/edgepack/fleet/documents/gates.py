"""The gates of a rollout: devices' measurements of a release, compared with the previous release.

A gate is a row of `GATES`. Each device measures the gate's number and is compared with itself, or
with its hardware class, under its previous release.
"""

from typing import Literal

import msgspec

Comparison = Literal["ratio", "rise", "share"]
"""Divided by what it was before, what is beyond that, or as it stands: what is measured is a
comparison already."""
GateVerdict = Literal[
    "pass", "breach", "hold", "accepted", "too few", "no baseline", "no evidence", "off"
]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """Gate. A higher number is worse in all gates.

    Attributes:
        name: Name in options and documents.
        comparison: Comparison of the new and the previous measurement.
        threshold: Threshold unless the plan says otherwise: a ratio, or a rise in `unit`.
        unit: Unit of the measurement.
        text: The measurement in words.
        words: The measured value in words; `{items}` are the answers that the task counts.
        is_default: Whether the gate applies without a setting.
        fewest: Inferences that a device must report, before and now, to count.
        spread: Standard deviation of a device's number without a change, assumed while fewer than 3
            devices measured the number; of the logarithm for a ratio.
    """

    name: str
    comparison: Comparison
    threshold: float
    unit: str
    text: str
    words: str = "{}"
    is_default: bool = True
    fewest: int = 0
    spread: float = 0.0

    @property
    def default(self) -> str:
        """Default threshold as text."""
        return f"{self.threshold:g}" if self.is_default else "off"

    def worded(self, value: float, items: str) -> str:
        """Return a value in words: `+6.0 points of boxes lost`."""
        return self.words.format(self.shown(value), items=items)

    def shown(self, value: float) -> str:
        """Return a ratio, a rise or a share, for people."""
        if self.comparison == "ratio":
            return f"{value:.2f} x"
        if self.comparison == "share":
            return f"{value:.1%}"
        if self.unit == "%":
            return f"{value * 100:+.1f} points"
        return f"{value:+.3g} {self.unit}".rstrip()


_OF_LATENCY = 0.074
"""Noise of one device over 10 minutes, .055, and effects that differ from device to device, .05.
Half of it holds a canary of one at 1.18 times the release before, twice of it at 1.47."""

_OF_TAIL = 0.5
"""The same of the highest 1 %: a device with bursts of slow inferences, 3 times as long, measures
its own release at up to 2.8 times the release before. In drawn devices with bursts of 5 or 20
inferences and 200 to 2,000 inferences, less than 1 % hold a release by chance; with
.074, up to 27 % do."""

GATES: tuple[Gate, ...] = (
    Gate(
        name="p95",
        comparison="ratio",
        threshold=1.10,
        unit="ms",
        text="latency that 95 % of a device's inferences do not exceed",
        fewest=60,  # the 57th of 60: three are above it
        spread=_OF_LATENCY,
    ),
    Gate(
        name="p99",
        comparison="ratio",
        threshold=1.25,
        unit="ms",
        text="latency that 99 % of a device's inferences do not exceed",
        fewest=200,  # the 198th of 200
        spread=_OF_TAIL,
    ),
    Gate(
        name="errors",
        comparison="rise",
        threshold=0.01,
        unit="%",
        text="share of inferences that the provider failed",
        fewest=60,
        spread=0.013,  # of 60 inferences, at the limit
    ),
    Gate(
        name="fallbacks",
        comparison="rise",
        threshold=0.10,
        unit="%",
        text="share of devices that run on another provider than they are meant to",
    ),
    Gate(
        name="memory",
        comparison="ratio",
        # Above all 80 swaps of an equal model (`benchmarks.swaps`, a text detector and a text
        # recognizer): mean 1.006, 95 % up to 1.105, greatest 1.152. The mean of three devices is
        # far below. Where two inferences run at once, the arena's peak differs from run to run.
        threshold=1.2,
        unit="bytes",
        text="memory of a process that serves the model",
        spread=0.05,  # 95 % of swaps of an equal model are within 1.105
    ),
    Gate(
        name="temperature",
        comparison="rise",
        threshold=10.0,
        unit="°C",
        text="highest temperature of a device",
        spread=5.0,  # a sunny day
    ),
    Gate(
        name="golden",
        comparison="rise",
        threshold=0.05,
        unit="%",
        text="share of the task (boxes, texts, classes) that the golden samples lose on a device",
        words="{} of {items} lost",
    ),
    Gate(
        name="shadow",
        comparison="share",
        threshold=0.05,
        unit="%",
        text="share of inferences with other boxes, texts or classes than the previous release",
        words="{} of inferences with other {items}",
        fewest=60,
        spread=0.028,  # of 60 inferences, at the limit
    ),
    Gate(
        name="drift",
        comparison="rise",
        threshold=0.30,  # a class of 10 % of the inferences becomes one of 19 %
        unit="SD",
        text="greatest difference of a feature from the build's samples, standard deviations",
        spread=0.15,
        is_default=False,  # it rises at dusk, too
    ),
)
BY_NAME = {gate.name: gate for gate in GATES}


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a gate for a hardware class in a rollout.

    Attributes:
        name: Its name; `failures` for the share of devices that failed or stayed silent.
        hardware_class: The class; "" for all devices together.
        threshold: Threshold: a ratio to before, a rise, or a share; None when off.
        comparison: `ratio`, `rise` or `share`.
        unit: Unit of the measurement.
        devices: Devices with a measurement, now and before.
        value: Mean over these devices (geometric for a ratio); None when there is none.
        bound: Lower bound of the true value with a confidence of 97.5 %, or 99.75 % for `failures`;
            None for the failures of a finished wave. Below 3 devices the bound rests on an assumed
            spread; see `Gate.spread`.
        before, now: Mean of the measurements, in `unit`; None for none.
        verdict: `pass`, `breach`, `hold` (1 or 2 devices measured a breach, which is evidence about
            these devices only: a person decides), `accepted` (a person resumed after the breach),
            `too few` devices, `no baseline`, `no evidence` or `off`.
        because: The result in a sentence.
    """

    name: str
    hardware_class: str
    threshold: float | None
    comparison: str
    unit: str
    devices: int
    value: float | None
    bound: float | None
    before: float | None
    now: float | None
    verdict: GateVerdict
    because: str
