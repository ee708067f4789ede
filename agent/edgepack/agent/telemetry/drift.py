"""Drift: sums of features by release, their differences from the build, changes, and harm."""

import time
from collections.abc import Callable, Iterable

import msgspec

from edgepack.agent.telemetry.drift_windows import WINDOW_S, FeatureWindows, estimate_loss
from edgepack.bundle.features import FEWEST_INFERENCES, FeatureSum
from edgepack.bundle.metadata import MAX_FEATURES, Feature
from edgepack.wire.reports import Drift, FeatureDrift

MAX_RELEASES = 64

FULL_INFERENCES = 600
"""Sketched inferences from which on older ones count half: ten minutes or more."""

WINDOW_INFERENCES = 100
"""Sketched inferences of a window, at least."""

MOST_SHOWN = 5
"""Features that a report names, those with the greatest differences."""

MOST_DIFFERENCE = 1_000.0
"""Standard deviations that are stated, at most."""

_ALIKE = 0.25
"""Standard deviations between two builds' numbers of the same feature, at most."""

Release = tuple[str, str, str]
"""Digest, variant, provider."""


class FeatureState(msgspec.Struct, frozen=True, kw_only=True):
    """A feature's sums and windows.

    Attributes:
        recent: Running sum, in which older inferences count less.
        window: Sum of the window that is open.
        windows: Result of the windows so far.
    """

    recent: FeatureSum
    window: FeatureSum
    windows: FeatureWindows = FeatureWindows()

    def plus(self, new: FeatureSum) -> "FeatureState":
        """Return the state with new inferences."""
        return msgspec.structs.replace(
            self, recent=self.recent.plus(new), window=self.window.plus(new)
        )

    def faded(self) -> "FeatureState":
        """Return the state with half the weight of the inferences so far."""
        return msgspec.structs.replace(self, recent=self.recent.scaled(0.5))

    def closed(self, features: int) -> "FeatureState":
        """Return the state after the end of a window.

        Args:
            features: Features that are looked at together.
        """
        if self.window.count < 1:
            return self
        feature = self.recent.feature
        return FeatureState(
            recent=self.recent,
            window=FeatureSum(feature=feature),
            windows=self.windows.with_window(feature, self.window.value, features),
        )


class ReleaseState(msgspec.Struct, frozen=True, kw_only=True):
    """The features of a release.

    Attributes:
        window_s: Seconds of the window that is open.
    """

    release: Release
    window_s: float = 0.0
    features: tuple[FeatureState, ...] = ()


class DriftWatch:
    """Adds up features by release, and compares them with the build.

    Args:
        window_s: Seconds of a window, at least.
        clock: Seconds that never go back.
    """

    def __init__(
        self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen_at: dict[Release, float] = {}
        self._states: dict[Release, ReleaseState] = {}
        self._found: dict[str, Drift] = {}

    @property
    def states(self) -> tuple[ReleaseState, ...]:
        """Return the features of all releases, for a file."""
        return tuple(self._states.values())

    def load(self, states: Iterable[ReleaseState]) -> None:
        """Take the features from a file."""
        for one in states:
            self._states[one.release] = one
            self._describe(one)

    def add(self, release: Release, sums: Iterable[FeatureSum]) -> Drift | None:
        """Add sums of a release.

        Args:
            release: Release that ran.
            sums: New inferences, by feature.

        Returns:
            The release's drift; None without new inferences, or with fewer than 30 in total.
        """
        new = [one for one in sums if one.count > 0]
        if not new:
            return None
        state = self._states.pop(release, None) or ReleaseState(release=release)
        known = {one.recent.feature.key: one for one in state.features}
        for one in new:
            key = one.feature.key
            before = known.get(key)
            if before is not None and before.recent.feature == one.feature:
                known[key] = before.plus(one)
            elif before is not None or len(known) < MAX_FEATURES:
                windows = self._learnt(one.feature)
                known[key] = FeatureState(recent=one, window=one, windows=windows)
        if max(one.recent.count for one in known.values()) > FULL_INFERENCES:
            known = {key: one.faded() for key, one in known.items()}
        now = self._clock()
        length_s = state.window_s + min(now - self._seen_at.get(release, now), self._window_s)
        self._seen_at[release] = now
        most = max(one.window.count for one in known.values())
        if length_s >= self._window_s and most >= WINDOW_INFERENCES:
            length_s = 0.0
            known = {key: one.closed(len(known)) for key, one in known.items()}
        state = ReleaseState(release=release, window_s=length_s, features=tuple(known.values()))
        self._states[release] = state
        while len(self._states) > MAX_RELEASES:
            oldest = next(iter(self._states))
            del self._states[oldest]
            self._found.pop(oldest[0], None)
        return self._describe(state)

    def recent(self, digest: str) -> Drift | None:
        """Return the drift of a release; None while too few inferences were sketched."""
        return self._found.get(digest)

    def _learnt(self, feature: Feature) -> FeatureWindows:
        """Return the first day's windows of the same feature in another release.

        How much an input varies on a device does not depend on the release.
        """
        for state in reversed(self._states.values()):
            for one in state.features:
                if one.windows.learnt and _is_alike(one.recent.feature, feature):
                    known = one.windows
                    return FeatureWindows(
                        learnt=known.learnt,
                        mean=known.mean,
                        squares=known.squares,
                        farthest=known.farthest,
                    )
        return FeatureWindows()

    def _describe(self, state: ReleaseState) -> Drift | None:
        drift = describe_drift(state.features)
        if drift is not None:
            self._found[state.release[0]] = drift
        return drift


def _is_alike(one: Feature, other: Feature) -> bool:
    """Return whether two builds describe the same feature, with nearly the same numbers."""
    return one.key == other.key and all(
        abs(before - after) <= _ALIKE * one.spread
        for before, after in ((one.mean, other.mean), (one.spread, other.spread))
    )


def describe_drift(features: Iterable[FeatureState]) -> Drift | None:
    """Return the features with the greatest differences; None if inferences are too few.

    Changed features come first.
    """
    enough = [one for one in features if one.recent.count >= FEWEST_INFERENCES]
    if not enough:
        return None
    order = sorted(enough, key=lambda one: (not one.windows.is_changed, -one.recent.difference))
    return Drift(
        inferences=round(max(one.recent.count for one in enough)),
        difference=min(max(one.recent.difference for one in enough), MOST_DIFFERENCE),
        loss=estimate_loss((one.recent.feature, one.windows) for one in enough),
        features=tuple(
            FeatureDrift(
                words=one.recent.feature.words,
                difference=min(one.recent.difference, MOST_DIFFERENCE),
                now=one.recent.value,
                build=one.recent.feature.mean,
                is_change=one.windows.is_changed,
            )
            for one in order[:MOST_SHOWN]
            if one.recent.difference > 0.0 or one.windows.is_changed
        ),
    )
