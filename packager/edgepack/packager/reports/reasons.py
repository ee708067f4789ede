"""Reasons for the choice of a variant, in plain sentences from the report's facts."""

from edgepack.number_format import format_metric
from edgepack.packager.reports.report import MeasuredVariant, Report, VariantReport
from edgepack.packager.search.attempts import Attempt
from edgepack.tasks.details import SAMPLES_TO_PROVE
from edgepack.text import counted

FLOAT_PRECISION = "fp32"


def sum_up(report: Report) -> str:
    """Return the whole build in a sentence or two."""
    made, unfinished = len(report.variants), sum(it.is_unfinished for it in report.refused)
    refused = len(report.refused) - unfinished
    degraded = sum(variant.degraded for variant in report.variants)
    if not made:
        return "No bundle was made: " + (
            "the profile was refused." if len(report.refused) == 1 else "every profile was refused."
        )
    kept = made - degraded
    words = "1 variant holds its" if kept == 1 else f"{kept} variants hold their"
    text = f"{words} budgets on samples that were held out{_unproven(report)}." if kept else ""
    if degraded:
        are = "is" if degraded == 1 else "are"
        text += f" {counted(degraded, 'variant')} {are} published degraded."
    in_place = [variant.name for variant in report.variants if is_float_instead(variant)]
    if in_place:
        text += f" For {', '.join(in_place)} the float model is published."
    if refused:
        text += f" {refused} profile{' was' if refused == 1 else 's were'} refused."
    if unfinished:
        text += f" {counted(unfinished, 'profile')} not finished in time."
    return text.strip()


def _unproven(report: Report) -> str:
    """Return the variants with too few held-out samples for a proof; "" without any."""
    names = [
        variant.name for variant in report.variants if SAMPLES_TO_PROVE in variant.accuracy.details
    ]
    if not names:
        return ""
    most = max(
        int(variant.accuracy.details.get(SAMPLES_TO_PROVE, 0.0)) for variant in report.variants
    )
    whose = "" if len(names) == len(report.variants) else f" for {', '.join(names)}"
    would = f": {most:,} would be enough" if most else ""
    return f", which are too few to prove it{whose}{would}"


def explain(variant: VariantReport) -> str:
    """Return why this variant was chosen."""
    attempts = variant.attempts
    if variant.float_because:
        return f"The float model is published: {variant.float_because}."
    if not attempts:
        if variant.precision == FLOAT_PRECISION:
            return "Nothing was lowered, so there was nothing to choose."
        return "The profile lowers it in one way, so there was nothing to choose."
    best, tried = best_attempt(attempts), counted(len(attempts), "candidate")
    if best is None:
        return f"It is the best of {tried}."
    if variant.degraded:
        return (
            f"{_words(best)} is the best of {tried}. It misses a gate, and is published marked as "
            "degraded because that was asked for."
        )
    if len(attempts) == 1:
        return f"The first candidate, {best.what}, holds the budget: no search was needed."
    return f"Of {tried}, {best.what} is the cheapest that holds the budget with room to spare."


def explain_refusal(problem: str, best: MeasuredVariant) -> str:
    """Return the result of a rejected profile.

    Args:
        problem: Reason of the refusal; reported if accuracy is not the reason.
        best: Its best candidate.
    """
    accuracy = best.accuracy
    if accuracy.value >= accuracy.budget:
        return f"{problem[:1].upper()}{problem[1:]}."
    tried = "It keeps"
    if best.attempts:
        tried = f"The best of {counted(len(best.attempts), 'candidate')} keeps"
    return (
        f"{tried} {format_metric(accuracy.value)} on held-out samples; the budget is "
        f"{format_metric(accuracy.budget)}."
    )


def best_attempt(attempts: tuple[Attempt, ...]) -> Attempt | None:
    """Return the attempt that went on to the gates; None in reports that do not tell."""
    return next((attempt for attempt in attempts if attempt.is_best), None)


def is_float_instead(variant: VariantReport) -> bool:
    """Return True if the float model is published in place of a quantized model."""
    return bool(variant.float_because)


def _words(attempt: Attempt) -> str:
    return f"{attempt.what[:1].upper()}{attempt.what[1:]}"
