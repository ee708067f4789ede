"""The gates of a rollout: devices' measurements of a release, compared with the previous release.

A gate is a row of `GATES`. Each device measures the gate's number and is compared with itself under
its previous release; gates that compare times also subtract the change of concurrent controls.
"""

from typing import Literal

import msgspec

Comparison = Literal["ratio", "rise", "share"]
"""Divided by what it was before, what is beyond that, or as it stands: what is measured is a
comparison already."""
Method = Literal["mean", "bet", "share"]
"""Bound over devices; see `edgepack.fleet.rollouts.statistics`."""
GateVerdict = Literal[
    "pass", "breach", "hold", "accepted", "too few", "no baseline", "no evidence", "off"
]


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """Gate. A higher number is worse in all gates.

    Attributes:
        name: Name in options and documents.
        comparison: Comparison of the new and the previous measurement.
        method: Bound over 3 devices or more.
        threshold: Threshold unless the plan says otherwise: a ratio, or a rise in `unit`.
        unit: Unit of the measurement.
        text: The measurement in words.
        words: The measured value in words; `{items}` are the answers that the task counts.
        is_default: Whether the gate applies without a setting.
        fewest: Inferences that a device must report, before and now, to count.
        noise: Standard deviation of a device's change without a cause, assumed until the fleet's
            own history of pairs A/A shows the noise; of the logarithm for a ratio.
        effect: Assumed standard deviation of a release's effect between devices.
        weight: Share of the error probability, relative to the other gates.
        of_items: Answers of the models that the gate is about; "" for all models. For other models
            the gate is off unless it is set, and takes none of their error probability.
    """

    name: str
    comparison: Comparison
    method: Method = "mean"
    threshold: float
    unit: str
    text: str
    words: str = "{}"
    is_default: bool = True
    fewest: int = 0
    noise: float
    effect: float = 0.0
    weight: float = 1.0
    of_items: str = ""

    @property
    def is_timed(self) -> bool:
        """True if a device measures the number every five minutes."""
        return self.name in TIMED

    @property
    def default(self) -> str:
        """Default threshold as text."""
        of = f" for {self.of_items}" if self.of_items else ""
        return f"{self.threshold:g}{of}" if self.is_default else "off"

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


TIMED = ("p95", "p99", "memory", "temperature", "drift", "energy", "first_token")
"""Gates with a value every five minutes: a device's number is the change of these values."""

GATES: tuple[Gate, ...] = (
    Gate(
        name="p95",
        comparison="ratio",
        threshold=1.10,
        unit="ms",
        text="latency that 95 % of a device's inferences do not exceed",
        fewest=60,  # the 57th of 60: three are above it
        # Simulated devices over 10 minutes against the hour before. Half the noise lets a canary of
        # one find 1.4 times the previous release, twice the noise 2.1 times.
        noise=0.055,
        effect=0.05,
        weight=1.5,  # most releases that are stopped are slower, and 1.3 times is near the limit
    ),
    Gate(
        name="p99",
        comparison="ratio",
        threshold=1.25,
        unit="ms",
        text="latency that 99 % of a device's inferences do not exceed",
        fewest=200,  # the 198th of 200
        # A device with bursts of slow inferences, 3 times as long, measures its own release at up
        # to 2.8 times the previous release.
        noise=0.5,
        effect=0.05,
    ),
    Gate(
        name="errors",
        comparison="rise",
        method="bet",
        threshold=0.01,
        unit="%",
        text="share of inferences that the provider failed",
        fewest=600,  # of 60 inferences, 3 % of equal releases fail more than before
        noise=0.005,
    ),
    Gate(
        name="fallbacks",
        comparison="rise",
        method="share",
        threshold=0.10,
        unit="%",
        text="share of devices that run on another provider than they are meant to",
        noise=0.1,
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
        noise=0.05,  # 95 % of swaps of an equal model are within 1.105
        effect=0.02,
    ),
    Gate(
        name="temperature",
        comparison="rise",
        threshold=10.0,
        unit="°C",
        text="highest temperature of a device",
        noise=3.0,
        effect=2.0,
    ),
    Gate(
        name="golden",
        comparison="rise",
        threshold=0.05,
        unit="%",
        text="share of the task (boxes, texts, classes) that the golden samples lose on a device",
        words="{} of {items} lost",
        noise=0.005,
        effect=0.01,
    ),
    Gate(
        name="shadow",
        comparison="share",
        method="bet",
        threshold=0.05,
        unit="%",
        text="share of inferences with other boxes, texts or classes than the previous release",
        words="{} of inferences with other {items}",
        fewest=60,
        noise=0.028,  # of 60 inferences, at the limit
    ),
    Gate(
        name="drift",
        comparison="rise",
        threshold=0.30,  # a class of 10 % of the inferences becomes one of 19 %
        unit="SD",
        text="greatest difference of a feature from the build's samples, standard deviations",
        noise=0.05,
        effect=0.05,
        is_default=False,  # it rises at dusk, too
    ),
    Gate(
        name="energy",
        comparison="ratio",
        threshold=1.2,
        unit="J",
        text="energy of the device for an inference, idle power included",
        noise=0.1,
        effect=0.05,
        is_default=False,  # it rises when the application runs fewer inferences
    ),
    Gate(
        name="first_token",
        comparison="ratio",
        # As of `p99`: prompts differ in length from value to value. Not measured on a fleet.
        threshold=1.25,
        unit="ms",
        text="time to the first token that half of a device's texts do not exceed",
        fewest=20,
        noise=0.1,
        effect=0.05,
        of_items="tokens",
    ),
)
BY_NAME = {gate.name: gate for gate in GATES}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Changes over the devices of a hardware class that a look found for a gate.

    Attributes:
        devices: Devices with a change.
        unbased: Further devices with a measurement now, but without an earlier measurement.
        value: Mean change; a logarithm for a ratio.
        bound: Its lower bound.
        before: Mean of the earlier measurements.
        controls: Devices that corrected the changes; 0 for none, None if the gate needs none.
        squares: Sum of squared distances of 3 devices or more from their mean, in units of the
            assumed variance; 0 for fewer devices.
    """

    devices: int = 0
    unbased: int = 0
    value: float = 0.0
    bound: float = 0.0
    before: float = 0.0
    controls: int | None = None
    squares: float = 0.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Least change that a rollout finds in 9 of 10 cases.

    Attributes:
        gate, hardware_class: Gate and class of the devices.
        devices: Devices with the release.
        controls: Devices still on the previous release; without controls, a release at its limit is
            stopped more often than 2.5 %.
        least: Least change: a ratio, or a rise in the gate's unit.
        noise: Standard deviation of a device's change without a cause, from the fleet's history.
    """

    gate: str
    hardware_class: str
    devices: int
    controls: int
    least: float
    noise: float


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
        bound: Lower bound of the true value: all gates, classes and looks of the rollout together
            are wrong with a probability of 2.5 % at most; None for the failures of a finished wave.
        controls: Devices on their previous release that corrected the value; None if the gate needs
            no controls.
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
    controls: int | None = None
