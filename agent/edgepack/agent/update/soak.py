"""Evaluation of a soaking model by its real inferences. Pure."""

from collections.abc import Iterable, Sequence

from edgepack.wire.messages import Telemetry

TOLERATED_FAILURES = 0.01
"""Share of inferences that may raise; an application's own mistakes are among them."""


def count_inferences(windows: Iterable[Telemetry], digest: str) -> int:
    """Return real inferences of a bundle that these latency reports tell of."""
    return sum(window.latency.count for window in windows if window.digest == digest)


def why_unfit(windows: Iterable[Telemetry], troubles: Sequence[str], digest: str) -> str:
    """Return why the model must not stay; "" without a reason.

    Args:
        windows: Latency reports since the switch.
        troubles: Why serving processes could not follow the switch, since then.
        digest: The soaking bundle; reports on other bundles are ignored.
    """
    if troubles:
        return f"a process could not serve it: {troubles[0]}"
    failures = not_finite = inferences = 0
    for window in windows:
        if window.digest == digest:
            failures += window.failures
            not_finite += window.not_finite
            inferences += window.failures + window.latency.count
    kinds = ((failures, "failed"), (not_finite, "gave NaN or infinity"))
    for count, kind in kinds:
        if count > TOLERATED_FAILURES * inferences:
            return (
                f"{count} of {inferences} real inferences {kind} while it soaked, "
                f"more than {TOLERATED_FAILURES:.0%}"
            )
    return ""
