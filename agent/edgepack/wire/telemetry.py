"""Telemetry of a device: latencies of real inferences, and events."""

from typing import Annotated

import msgspec

from edgepack.wire.messages import (
    Count,
    Deviations,
    Message,
    Moment,
    Span,
    Word,
)


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in logarithmic buckets; see `edgepack.wire.histogram` for making and merging.

    Attributes:
        growth: Ratio of a bucket's upper bound to its lower bound.
        counts: Inferences by bucket index i: latency_ms in (growth**(i-1), growth**i].
        count: All inferences.
        sum_ms, min_ms, max_ms: Exact sum and extremes.
    """

    growth: float
    counts: dict[int, int]
    count: int
    sum_ms: float
    min_ms: float
    max_ms: float


class Telemetry(Message, frozen=True, kw_only=True):
    """Device to controller: latency of real inferences in one window of time.

    Attributes:
        digest, variant, provider: What ran.
        window_start: Start of the window.
        window_s: Its length, seconds.
        latency: Histogram of real inferences.
        failures: Inferences that raised.
        memory_bytes: Memory of a process that serves the model, of the largest where there are
            several, bytes; None when not known.
        temperature_c: The device's highest temperature, degrees Celsius; None when not known.
        drift: The greatest difference of a feature from the build's samples, standard deviations;
            None if it is not measured.
        shadow_count: Inferences that a second model computed, too, to compare.
        shadow_agreed: Shadow inferences in which both releases agreed.
        not_finite: Inferences with NaN or infinity in an output that has none in the golden
            samples, although all inputs were finite; they are in `latency`, too.
        bad_inputs: The same with NaN or infinity in an input.
        bad_input: The last such input; "" for none.
        energy_j: The device's energy in the window, joules, in proportion to the time of the
            release's inferences; None if a part of the window is not known.
        throttled_s: Time in which the device slowed down for heat, seconds.
        first_tokens: Histogram of the times to the first token, of inferences that wrote a text;
            None without any. The latency of such an inference is the mean time of a further token.
    """

    digest: Word
    variant: Word
    provider: Word
    window_start: Moment
    window_s: Span
    latency: Histogram
    failures: Count = 0
    memory_bytes: Count | None = None
    temperature_c: Annotated[float, msgspec.Meta(ge=-274, le=1000)] | None = None
    drift: Deviations | None = None
    shadow_count: Count = 0
    shadow_agreed: Count = 0
    not_finite: Count = 0
    bad_inputs: Count = 0
    bad_input: Word = ""
    energy_j: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    throttled_s: Span = 0.0
    first_tokens: Histogram | None = None

    @property
    def metered(self) -> int:
        """Inferences that `energy_j` stands for."""
        return 0 if self.energy_j is None else self.latency.count + self.failures


class Event(Message, frozen=True, kw_only=True):
    """Device to controller: one life cycle transition, or a refusal worth knowing.

    Attributes:
        at: When, by the device's clock.
        kind: `transition`, `refused`, `hook`, `wait`, `warning` or `watch`; a newer device may know
            more.
        model: The model that it is about; "" when it is about the device.
        bundle: The bundle's title.
        from_state, to_state: Of a transition, or of the watch.
        because: Why.
        rollout, sequence: Of the order that it speaks of.
    """

    at: Moment
    kind: Word
    model: Word = ""
    bundle: Word
    from_state: Word = ""
    to_state: Word = ""
    because: str = ""
    rollout: Word = ""
    sequence: int = 0
