"""Outcomes of the most recent real inferences of each release: finished, failed, or not finite."""

from collections import deque
from typing import Literal, NamedTuple

from edgepack.wire.reports import Outcomes
from edgepack.wire.telemetry import Telemetry

RECENT_S = 600.0
"""Inferences of so many seconds are looked at,"""
FEWEST_INFERENCES = 100
"""and older ones until there are so many, for models that run seldom,"""
OLDEST_S = 24 * 3600.0
"""but none that are older than this."""

TOLERATED = 0.01
"""Share of inferences that may fail before the device warns; as in a soak."""
_BANDS = (0.5, 0.1, TOLERATED)
_MAX_RELEASES = 64


class _Part(NamedTuple):
    at: float
    inferences: int
    failed: int
    not_finite: int
    bad_inputs: int
    bad_input: str


class OutcomeWatch:
    """Counts outcomes by release, for reports and warnings of the device."""

    def __init__(self) -> None:
        self._parts: dict[str, deque[_Part]] = {}

    def add(self, window: Telemetry, at: float) -> None:
        """Count the inferences of a window.

        Args:
            window: New window.
            at: Its end, monotonic clock, seconds.
        """
        parts = self._parts.setdefault(window.digest, deque())
        tried = window.latency.count + window.failures
        if tried:
            parts.append(
                _Part(
                    at,
                    tried,
                    window.failures,
                    window.not_finite,
                    window.bad_inputs,
                    window.bad_input,
                )
            )
        while len(self._parts) > _MAX_RELEASES:
            del self._parts[next(iter(self._parts))]

    def recent(self, digest: str, now: float) -> Outcomes | None:
        """Return the outcomes of a release's most recent inferences; None where there are none."""
        parts = self._parts.get(digest)
        if not parts:
            return None
        count = sum(part.inferences for part in parts)
        while parts and (
            now - parts[0].at > OLDEST_S
            or (now - parts[0].at > RECENT_S and count - parts[0].inferences >= FEWEST_INFERENCES)
        ):
            count -= parts.popleft().inferences
        if not parts:
            return None
        return Outcomes(
            inferences=count,
            failed=sum(part.failed for part in parts),
            not_finite=sum(part.not_finite for part in parts),
            bad_inputs=sum(part.bad_inputs for part in parts),
            bad_input=next((part.bad_input for part in reversed(parts) if part.bad_input), ""),
        )

    def lasted_s(self, digest: str, kind: Literal["failed", "not_finite", "bad_inputs"]) -> float:
        """Return seconds from the first window with such recent inferences to the last."""
        told = [part.at for part in self._parts.get(digest, ()) if getattr(part, kind)]
        return max(told) - min(told) if told else 0.0


def kinds_of(outcomes: Outcomes) -> tuple[tuple[int, str], ...]:
    """Return the numbers of inferences that went wrong, each with its kind in words."""
    return (
        (outcomes.failed, "failed"),
        (outcomes.not_finite, "gave NaN or infinity"),
        (outcomes.bad_inputs, f"had NaN or infinity in the input {outcomes.bad_input!a}"),
    )


def describe_failures(outcomes: Outcomes) -> str:
    """Return a description of failing inferences for a person, as the end of a sentence; or "".

    The words change with the magnitude alone: equal warnings of many devices are shown together.
    """
    found = []
    for count, kind in kinds_of(outcomes):
        if count and count == outcomes.inferences:
            found.append(f"all recent inferences {kind}")
            continue
        band = next((band for band in _BANDS if count > band * outcomes.inferences), None)
        if band is not None:
            found.append(f"more than {band:.0%} of recent inferences {kind}")
    return ", ".join(found)
