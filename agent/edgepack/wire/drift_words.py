"""Wording of drift, for the device's status, the fleet's commands and its dashboard."""

from edgepack.text import counted
from edgepack.wire.messages import Drift, FeatureDrift


def drift_lines(drift: Drift) -> tuple[str, ...]:
    """Return a line for each differing feature, or a line that no feature differs."""
    of = f"in {counted(drift.inferences, 'sketched inference')}"
    if not drift.features:
        return (f"no difference from the build {of}",)
    return tuple(f"{_describe(one)}, {of}" for one in drift.features)


def _describe(feature: FeatureDrift) -> str:
    return (
        f"{feature.words} is {feature.now:.3g}, at the build {feature.build:.3g}: "
        f"{feature.difference:.2g} standard deviations beyond chance"
    )
