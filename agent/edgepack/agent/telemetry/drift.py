"""Drift: running sums of features by release, and their differences from the build."""

from collections.abc import Iterable

import msgspec

from edgepack.bundle.drift import FEWEST_INFERENCES, FeatureSum
from edgepack.bundle.metadata import MAX_FEATURES
from edgepack.wire.messages import Drift, FeatureDrift

MAX_RELEASES = 64

FULL_INFERENCES = 600
"""Sketched inferences from which on older ones count half: ten minutes or more."""

MOST_SHOWN = 5
"""Features that a report names, those with the greatest differences."""

MOST_DIFFERENCE = 1_000.0
"""Standard deviations that are stated, at most."""

Release = tuple[str, str, str]
"""Digest, variant, provider."""


class ReleaseSums(msgspec.Struct, frozen=True, kw_only=True):
    """Running sums of a release's features."""

    release: Release
    sums: tuple[FeatureSum, ...]


class DriftWatch:
    """Adds up features by release, and compares the sums with the build."""

    def __init__(self) -> None:
        self._sums: dict[Release, dict[str, FeatureSum]] = {}
        self._found: dict[str, Drift] = {}

    @property
    def sums(self) -> tuple[ReleaseSums, ...]:
        """Return the running sums, for a file."""
        return tuple(
            ReleaseSums(release=release, sums=tuple(known.values()))
            for release, known in self._sums.items()
            if known
        )

    def load(self, sums: Iterable[ReleaseSums]) -> None:
        """Take running sums from a file."""
        for one in sums:
            self.add(one.release, one.sums)

    def add(self, release: Release, sums: Iterable[FeatureSum]) -> Drift | None:
        """Add sums of a release.

        Args:
            release: Release that ran.
            sums: New inferences, by feature.

        Returns:
            The release's drift; None without new inferences, or with fewer than 30 in total.
        """
        known = self._sums.setdefault(release, {})
        is_new = False
        for one in sums:
            before = known.get(one.feature.key)
            is_same = before is not None and before.feature == one.feature
            both = before.plus(one) if before is not None and is_same else one
            if before is not None or len(known) < MAX_FEATURES:
                known[one.feature.key] = both
                is_new = is_new or one.count > 0
        most = max((one.count for one in known.values()), default=0.0)
        if most > FULL_INFERENCES:
            self._sums[release] = known = {key: one.scaled(0.5) for key, one in known.items()}
        while len(self._sums) > MAX_RELEASES:
            oldest = next(iter(self._sums))
            del self._sums[oldest]
            self._found.pop(oldest[0], None)
        drift = describe_drift(known.values()) if is_new else None
        if drift is not None:
            self._found[release[0]] = drift
        return drift

    def recent(self, digest: str) -> Drift | None:
        """Return the drift of a release; None while too few inferences were sketched."""
        return self._found.get(digest)


def describe_drift(sums: Iterable[FeatureSum]) -> Drift | None:
    """Return the features with the greatest differences; None if inferences are too few."""
    enough = [one for one in sums if one.count >= FEWEST_INFERENCES]
    if not enough:
        return None
    order = sorted(enough, key=lambda one: -one.difference)
    return Drift(
        inferences=round(max(one.count for one in enough)),
        difference=min(order[0].difference, MOST_DIFFERENCE),
        features=tuple(
            FeatureDrift(
                words=one.feature.words,
                difference=min(one.difference, MOST_DIFFERENCE),
                now=one.value,
                build=one.feature.mean,
            )
            for one in order[:MOST_SHOWN]
            if one.difference > 0.0
        ),
    )
