"""Features of drift: sums over inferences, and checks of features and sums. Without arrays: the
agent adds up sums of sketches, but computes no sketch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from edgepack.bundle.metadata import MAX_FEATURES, Feature
from edgepack.errors import BundleError, TransferError

FEWEST_INFERENCES = 30
"""Inferences from which on a difference is stated."""

CONFIDENCE = "confidence"

_ERRORS = 2.0
"""Standard errors that count as chance."""

_FARTHEST = 10.0
"""Standard deviations from the mean as which an inference counts at most."""

_MAX_COUNT = 2.0**53
_MAX_TOTAL = 1e300


class FeatureSum(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of a feature over inferences.

    Attributes:
        feature: The feature of the build.
        count: Inferences that have the feature.
        total: Sum of its values; of a spread, sum of the squared distances from the center.
    """

    feature: Feature
    count: float = 0.0
    total: float = 0.0

    def plus(self, other: "FeatureSum", sign: float = 1.0) -> "FeatureSum":
        """Return the sum of both, or the difference with `sign` -1."""
        return msgspec.structs.replace(
            self, count=self.count + sign * other.count, total=self.total + sign * other.total
        )

    def scaled(self, share: float) -> "FeatureSum":
        """Return the sum as if a share of the inferences had run."""
        return msgspec.structs.replace(self, count=self.count * share, total=self.total * share)

    def with_value(self, value: float) -> "FeatureSum":
        """Return the sum with another inference; a confidence, which is 0…1, counts whole."""
        it = self.feature
        middle = it.center if it.kind == "spread" else it.mean
        reach = 1.0 if it.name == CONFIDENCE else _FARTHEST * it.spread
        kept = min(max(value, middle - reach), middle + reach)
        added = (kept - middle) ** 2 if it.kind == "spread" else kept
        return msgspec.structs.replace(self, count=self.count + 1, total=self.total + added)

    @property
    def value(self) -> float:
        """Return the mean, or the spread around the center."""
        mean = self.total / max(self.count, 1e-9)
        return math.sqrt(max(mean, 0.0)) if self.feature.kind == "spread" else mean

    @property
    def difference(self) -> float:
        """Return the distance from the build's mean beyond chance, standard deviations."""
        apart = abs(self.value - self.feature.mean) / self.feature.spread
        error = math.sqrt(1.0 / max(self.count, 1e-9) + 1.0 / self.feature.samples)
        return max(0.0, apart - _ERRORS * error)


def shifted(features: Iterable[Feature], shifts: Mapping[str, float]) -> tuple[Feature, ...]:
    """Return the features as a variant has them: its confidence is not the float model's."""
    return tuple(
        msgspec.structs.replace(one, mean=one.mean + shifts[one.tensor])
        if one.name == CONFIDENCE and one.tensor in shifts
        else one
        for one in features
    )


def check_features(features: Sequence[Feature], *, found_in: str) -> None:
    """Check the features of a manifest.

    Raises:
        BundleError: A feature occurs twice, or its numbers are not finite or not positive.
    """
    if len({one.key for one in features}) < len(features):
        raise BundleError("a feature of drift occurs twice", found_in=found_in)
    for one in features:
        numbers = (one.mean, one.spread, one.center)
        if not all(map(math.isfinite, numbers)) or one.spread <= 0.0:
            raise BundleError(
                f"feature '{one.words}' has mean {one.mean:g} and spread {one.spread:g}",
                found_in=found_in,
            )


def check_sums(sums: tuple[FeatureSum, ...], *, found_in: str) -> None:
    """Check the sums of a process; any process of the device may have written the sums.

    Raises:
        TransferError: There are too many sums, or numbers contradict each other.
    """
    fits = len(sums) <= MAX_FEATURES and all(
        0 <= one.count <= _MAX_COUNT
        and abs(one.total) <= _MAX_TOTAL
        and 0 < one.feature.spread <= _MAX_TOTAL
        and max(abs(one.feature.mean), abs(one.feature.center)) <= _MAX_TOTAL
        for one in sums
    )
    if not fits:
        raise TransferError("malformed spool file: sums of features are off", found_in=found_in)


def sums_since(
    earlier: tuple[FeatureSum, ...], now: tuple[FeatureSum, ...]
) -> tuple[FeatureSum, ...]:
    """Return the sums since an earlier snapshot.

    Raises:
        TransferError: A count went down.
    """
    known = {one.feature: one for one in earlier}
    fresh = tuple(
        one.plus(before, -1) if (before := known.get(one.feature)) else one for one in now
    )
    if any(one.count < 0 for one in fresh):
        raise TransferError("its counts of features went down")
    return fresh
