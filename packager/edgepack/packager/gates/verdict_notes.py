"""A verdict in words: confidence, and samples of the evaluation."""

from collections.abc import Sequence

from edgepack.number_format import format_metric, format_percent
from edgepack.packager.gates.chains import describe_chains
from edgepack.packager.gates.proof import is_proven, samples_to_prove
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.wording import count_held_out
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import SELECTION

_WORTH_SAYING = 0.002
"""Of right answers: less than that is as good as nothing, and as uncertain."""


_LONGER_USE = (
    " In longer use errors may grow: steps in [inputs] says after how many inferences the state "
    "begins anew."
)


def describe_verdict(
    verdict: Verdict, count: int, samples: Samples, single: Sequence[Agreement]
) -> tuple[str, ...]:
    """Return sentences for the report.

    Args:
        verdict: Verdict of the accuracy gate on the samples.
        count: Number of samples of the verdict.
        samples: The held-out samples.
        single: Agreements of single inferences.
    """
    notes = list(verdict.remarks)
    for agreement in verdict.agreements:
        notes += agreement.notes
    if verdict.low is not None:
        on = count_held_out(count, are_series=bool(samples.steps))
        found, low = format_metric(verdict.value), format_metric(max(verdict.low, 0.0))
        notes.append(
            f"{verdict.what} is {found} on {on}: with 95 % "
            f"confidence at least {low} on samples like these{_describe_proof(verdict, count)}."
        )
    if verdict.expected_loss is not None and verdict.expected_loss >= _WORTH_SAYING:
        notes.append(
            "How sure its decisions are, and by how much they moved, says what other samples like "
            f"these would show: {verdict.expectation}."
        )
    selected = [
        f"{measure.value:.1%} of '{measure.output}'"
        for agreement in single
        if agreement.task == SELECTION
        for measure in agreement.measures
    ]
    if selected:
        notes.append(
            f"Of what the float model selects it has, in any order: {', '.join(selected)}."
        )
    if samples.states and verdict.agreements:
        told = ", ".join(
            f"{measure.metric} {measure.value:.4f}"
            + (f" of '{measure.output}'" if measure.output else "")
            for agreement in single
            for measure in agreement.measures
            if measure.output not in samples.fed_only
        )
        longer = "" if samples.steps else _LONGER_USE
        notes.append(
            f"Judged on {describe_chains(samples)}; single inferences keep "
            f"{told or 'what is told of the states only'}.{longer}"
        )
    return tuple(notes)


def _describe_proof(verdict: Verdict, count: int) -> str:
    """Return the relation of the lower bound to the budget, as the end of a sentence; "" if the
    bound proves the budget.
    """
    if verdict.asked is None or not verdict.passed or is_proven(verdict):
        return ""
    asked = format_metric(verdict.asked)
    if verdict.forgiven:
        why = (
            f", and the float model hesitated there: {format_percent(verdict.costs)} of right "
            "answers are expected to be lost"
            if verdict.costs
            else ""
        )
        return f", where the budget is {asked}: of so few one may differ{why}"
    needed = samples_to_prove(verdict, count)
    if needed is None:
        return f", which does not prove the budget of {asked}"
    return f"; {needed:,} that agree as well would prove the budget of {asked}"
