"""The verdict on a variant's model, by samples that nothing was chosen by."""

import math
from collections.abc import Sequence

import msgspec

from edgepack.packager.gates.labels import judge_by_labels
from edgepack.packager.gates.proof import without_dear_forgiveness
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.judge import MOST_SAMPLES, CandidateJudge


class HoldoutVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of the held-out samples on a model.

    Attributes:
        verdict: The verdict.
        count: How many held-out samples gave it.
        distances: By output, on the held-out samples.
    """

    verdict: Verdict
    count: int
    distances: Sequence[OutputDistance]


def judge_on_holdout(run: Run, gate: AccuracyGate, inputs: EvaluationInputs) -> HoldoutVerdict:
    """Judge a model by the held-out samples.

    Args:
        run: The model, with the outputs that are only watched.
        gate: The budgets.
        inputs: Have the held-out samples, and the metric or the labels that judge.

    Raises:
        BuildError: The model cannot be run.
    """
    samples = inputs.split.held_out
    judge = CandidateJudge(inputs.float_source, samples, gate, inputs.metric, MOST_SAMPLES)
    got = [run(feeds) for feeds in samples]
    count = judge.count
    if inputs.labelled is not None:
        count = len(inputs.labelled.labels)
        verdict = judge_by_labels(inputs.labelled, run, inputs.float_source, gate)
    elif inputs.metric is not None or samples.states or samples.decoder:
        verdict = judge.judge(run, at_least=-math.inf)
    else:
        verdict = judge.judge_single(got)
    return HoldoutVerdict(
        verdict=without_dear_forgiveness(verdict),
        count=count,
        distances=judge.reference.distances(got),
    )
