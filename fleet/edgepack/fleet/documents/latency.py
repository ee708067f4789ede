"""Latency of real inferences, over any devices and any time."""

from typing import Literal

import msgspec

from edgepack.wire.histogram import LEAST_MS, percentile
from edgepack.wire.telemetry import Histogram

Dimension = Literal[
    "model", "version", "variant", "provider", "hardware_class", "group", "rollout", "time"
]
"""What latencies can be told apart by; `time` by stretches of time."""


class LatencyQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Question about latencies.

    Attributes:
        model: Of this model; "" means all.
        group: Of devices that were in this group; "" means all.
        where: Selection over `model`, `version`, `variant`, `provider`, `hardware_class`, `group`
            and `rollout`, and over the labels of devices at the time of the report (sums of an hour
            or more only); "" means all. With `device`, also over the current attributes of devices,
            and over their newest inferences of any time.
        since, until: Seconds since the epoch (UTC); None means a day ago, and now.
        by: Dimensions of the result; other dimensions are summed up.
    """

    model: str = ""
    group: str = ""
    where: str = ""
    since: float | None = None
    until: float | None = None
    by: tuple[Dimension, ...] = ("model", "version", "hardware_class", "provider", "variant")


class TextTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of inferences that wrote texts.

    Attributes:
        texts: Number of texts.
        first_p50_ms, first_p95_ms: Percentiles of the time to the first token, milliseconds.
        tokens_per_s: Tokens a second after the first token: half of the texts are faster.
    """

    texts: int
    first_p50_ms: float
    first_p95_ms: float
    tokens_per_s: float

    @property
    def words(self) -> tuple[str, str, str]:
        """Cells of `TEXT_COLUMNS`."""
        return (
            f"{self.first_p50_ms:.2f}",
            f"{self.first_p95_ms:.2f}",
            f"{self.tokens_per_s:.1f}",
        )


TEXT_COLUMNS = ("first token p50, ms", "first token p95, ms", "tokens/s")


def text_times(latency: Histogram, first_tokens: Histogram) -> TextTimes | None:
    """Return the times of texts; None without texts.

    Args:
        latency: Times of a token, by text.
        first_tokens: Times to the first token, by text.
    """
    if not first_tokens.count or not latency.count:
        return None
    return TextTimes(
        texts=first_tokens.count,
        first_p50_ms=percentile(first_tokens, 50),
        first_p95_ms=percentile(first_tokens, 95),
        tokens_per_s=1000 / max(percentile(latency, 50), LEAST_MS),
    )


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Inferences that were taken together.

    Attributes:
        model, version, variant, provider, hardware_class, group: Common dimensions; "" for
            dimensions that were not requested, and for a release unknown to the fleet.
        rollout: Id of the newest rollout that gave their devices the release; "" likewise.
        at: Start of the stretch of time, seconds since the epoch (UTC); None likewise.
        is_simulator: Whether a simulator of the provider ran the inferences; simulated times are
            not comparable.
        inferences: Inferences that were timed.
        failures: Inferences that raised.
        p50_ms, p95_ms, p99_ms, max_ms: Percentiles and the greatest, milliseconds; 0 where none was
            timed. Percentiles are off by 2.5 % at most.
        texts: Times of texts; None for inferences that wrote none.
    """

    model: str = ""
    version: str = ""
    variant: str = ""
    provider: str = ""
    hardware_class: str = ""
    group: str = ""
    rollout: str = ""
    at: float | None = None
    is_simulator: bool
    inferences: int
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    texts: TextTimes | None = None


class LatencyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in a period of time.

    Attributes:
        since, until: The covered period: `since` is the start of the first sum, seconds since the
            epoch.
        step_s: Length of the sums, seconds: 60, 3600 or 86400; 0 for the newest inferences of
            single devices.
        parts: The groups of inferences, simulated providers last.
        untold: Inferences that are left out since the labels of their devices are not
            distinguished, where `where` asks for labels.
        note: Limits of the numbers, if not of the whole time; "" for none.
    """

    since: float
    until: float
    step_s: int
    parts: tuple[LatencyPart, ...]
    untold: int = 0
    note: str = ""
