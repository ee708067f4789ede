"""Drift: distance between a device's values and the values at the build."""

from collections.abc import Iterable

from edgepack.agent.telemetry.values import Seen
from edgepack.bundle.distributions import stability_index
from edgepack.bundle.metadata import MAX_DISTRIBUTIONS

FEWEST_INFERENCES = 30
FEWEST_VALUES = 240
"""Of a tensor before it is judged: of less, ten bins differ by chance alone."""

MAX_RELEASES = 64

Release = tuple[str, str, str]
"""Digest, variant, provider."""


class DriftWatch:
    """Adds up what was counted, and judges a tensor again whenever enough came."""

    def __init__(self) -> None:
        self._counted: dict[Release, dict[str, Seen]] = {}
        self._judged: dict[Release, dict[str, float]] = {}

    def judge(self, release: Release, seen: Iterable[Seen]) -> float | None:
        """Take what was counted since it was last asked.

        Args:
            release: Release that ran.
            seen: By tensor.

        Returns:
            The greatest stability index of its tensors, each as it was judged last; None where none
            was judged again.
        """
        counted = self._counted.setdefault(release, {})
        judged = self._judged.setdefault(release, {})
        is_new = False
        for one in seen:
            before = counted.get(one.tensor)
            both = one if before is None or before.shares != one.shares else before.plus(one)
            if both.inferences >= FEWEST_INFERENCES and sum(both.counts) >= FEWEST_VALUES:
                judged[one.tensor] = stability_index(both.shares, both.counts)
                counted.pop(one.tensor, None)
                is_new = True
            elif one.tensor in counted or len(counted) < MAX_DISTRIBUTIONS:
                counted[one.tensor] = both
        while len(self._counted) > MAX_RELEASES:
            oldest = next(iter(self._counted))
            del self._counted[oldest], self._judged[oldest]
        return max(judged.values()) if is_new else None
