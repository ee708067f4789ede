"""The verdict on a variant's model, by samples that nothing was chosen by."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.packager.gates.labels import judge_by_labels
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.number_format import format_metric
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.search.judge import CandidateJudge


class HoldoutVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the held-out samples say of a model.

    Attributes:
        verdict: The verdict.
        count: How many held-out samples gave it.
        distances: By output, on the held-out samples.
    """

    verdict: Verdict
    count: int
    distances: Sequence[OutputDistance]


def judge_on_holdout(
    model: Path, evaluator: Evaluator, inputs: EvaluationInputs, progress: Progress
) -> HoldoutVerdict:
    """Judges a model by the held-out samples, and runs it nowhere else.

    Args:
        model: The model, with the outputs that are only watched.
        evaluator: Opens it.
        inputs: Have the held-out samples, and the metric or the labels that judge.
        progress: Told about it.

    Raises:
        BuildError: The model cannot be run.
    """
    samples, gate = inputs.split.held_out, evaluator.profile.gates.accuracy
    judge = CandidateJudge(inputs.float_source, samples, gate, inputs.metric)
    progress(BuildStep(what="held-out samples"))
    run = evaluator.open(model)
    got = [run(feeds) for feeds in samples]
    count = samples.count
    if inputs.labelled is not None:
        count = len(inputs.labelled.labels)
        verdict = judge_by_labels(inputs.labelled, run, inputs.float_source, gate)
    elif inputs.metric is not None or samples.states:
        verdict = judge.judge(run)
    else:
        verdict = judge.judge_single(got)
    outcome = f"{verdict.what} {format_metric(verdict.value)}, the budget is "
    progress(BuildStep(what="held-out samples", outcome=outcome + format_metric(verdict.budget)))
    return HoldoutVerdict(verdict=verdict, count=count, distances=judge.reference.distances(got))
