"""Latency of real inferences, over any devices and any time."""

from typing import Literal

import msgspec

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
