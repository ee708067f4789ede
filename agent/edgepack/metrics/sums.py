"""Sums of telemetry by release: on the device of its own, in the fleet of all devices' windows."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from edgepack.metrics.table import Distribution, Family, Point, bucket_counts, family
from edgepack.wire.histogram import empty
from edgepack.wire.telemetry import Telemetry

ERRORS = ("failed", "not_finite", "bad_inputs")
"""Values of `error.type`: inferences that raised; that gave NaN or infinity where the golden
outputs have none; the same, with NaN or infinity in an input."""


class ReleaseSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of a release's windows.

    Attributes:
        since: Start of the first window, or of counting; seconds since the epoch.
        buckets: Finished inferences by bucket of `BOUNDS_S`.
        sum_ms: Sum of their durations, milliseconds.
        failed, not_finite, bad_inputs: See `ERRORS`.
        agreed, disagreed: Shadow inferences.
        energy_j, metered: Energy, joules, and the inferences that it stands for.
        throttled_s: Time in which the device slowed down for heat, seconds.
        first_buckets, first_sum_ms: The same of the times to the first token of texts.
    """

    since: float
    buckets: tuple[int, ...] = tuple(bucket_counts(empty()))
    sum_ms: float = 0.0
    failed: int = 0
    not_finite: int = 0
    bad_inputs: int = 0
    agreed: int = 0
    disagreed: int = 0
    energy_j: float = 0.0
    metered: int = 0
    throttled_s: float = 0.0
    first_buckets: tuple[int, ...] = tuple(bucket_counts(empty()))
    first_sum_ms: float = 0.0

    @property
    def finished(self) -> int:
        """Inferences that finished."""
        return sum(self.buckets)

    def plus(self, window: Telemetry) -> "ReleaseSums":
        """Return the sums with a further window."""
        added = bucket_counts(window.latency)
        agreed = min(window.shadow_agreed, window.shadow_count)
        first_tokens = window.first_tokens or empty()
        firsts = bucket_counts(first_tokens)
        return ReleaseSums(
            since=self.since,
            buckets=tuple(map(sum, zip(self.buckets, added, strict=True))),
            sum_ms=self.sum_ms + window.latency.sum_ms,
            failed=self.failed + window.failures,
            not_finite=self.not_finite + window.not_finite,
            bad_inputs=self.bad_inputs + window.bad_inputs,
            agreed=self.agreed + agreed,
            disagreed=self.disagreed + window.shadow_count - agreed,
            energy_j=self.energy_j + (window.energy_j or 0.0),
            metered=self.metered + window.metered,
            throttled_s=self.throttled_s + window.throttled_s,
            first_buckets=tuple(map(sum, zip(self.first_buckets, firsts, strict=True))),
            first_sum_ms=self.first_sum_ms + first_tokens.sum_ms,
        )


def sum_families(sums: Iterable[tuple[Mapping[str, str], ReleaseSums]]) -> Iterator[Family]:
    """Yield the metrics of sums, each with its attributes."""
    found = list(sums)

    def points(of: str, **further: str) -> Iterator[Point]:
        named = {key.replace("_", "."): value for key, value in further.items()}
        for attributes, one in found:
            yield Point({**attributes, **named}, getattr(one, of), one.since)

    durations = (
        Point(attributes, Distribution(one.buckets, one.sum_ms / 1000), one.since)
        for attributes, one in found
    )
    yield family("edgepack.inference.duration", durations)
    first_tokens = (
        Point(attributes, Distribution(one.first_buckets, one.first_sum_ms / 1000), one.since)
        for attributes, one in found
        if any(one.first_buckets)
    )
    yield family("edgepack.text.first_token.duration", first_tokens)
    yield family(
        "edgepack.inference.errors",
        (point for error in ERRORS for point in points(error, error_type=error)),
    )
    yield family(
        "edgepack.shadow.inferences",
        (
            *points("agreed", edgepack_agreed="true"),
            *points("disagreed", edgepack_agreed="false"),
        ),
    )
    yield family("edgepack.inference.energy", points("energy_j"))
    yield family("edgepack.inference.metered", points("metered"))
    yield family("edgepack.inference.throttled.time", points("throttled_s"))
