"""Wording of drift, for the device's status, the fleet's commands and its dashboard."""

from edgepack.text import counted
from edgepack.wire.reports import Drift, FeatureDrift


def drift_lines(drift: Drift) -> tuple[str, ...]:
    """Return a line of harm, and a line for each differing feature, or that no feature differs."""
    of = f"in {counted(drift.inferences, 'sketched inference')}"
    harm = () if drift.loss is None else (f"harm: {harm_words(drift.loss)}",)
    if not drift.features:
        return (*harm, f"no difference from the build {of}")
    return (*harm, *(f"{_describe(one)}, {of}" for one in drift.features))


def harm_words(loss: float) -> str:
    """Return the loss that is estimated from a fallen confidence, in words."""
    return f"the confidence fell; estimated loss: {loss:.0%} of the right answers"


def _describe(feature: FeatureDrift) -> str:
    changed = "changed: " if feature.is_change else ""
    return (
        f"{changed}{feature.words} is {feature.now:.3g}, at the build {feature.build:.3g}: "
        f"{feature.difference:.2g} standard deviations beyond chance"
    )
