"""The verdict on a variant's model, by samples that nothing was chosen by."""

import math

import msgspec

from edgepack.bundle.drift import confidence_shifts, sketched_parts
from edgepack.packager.gates.labels import judge_by_labels
from edgepack.packager.gates.proof import without_dear_forgiveness
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.profiles.schema import AccuracyBudgets
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.judge import MOST_SAMPLES, CandidateJudge
from edgepack.tasks.contract import Agreement


class HoldoutVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of the held-out samples on a model.

    Attributes:
        verdict: The verdict.
        count: Number of held-out samples.
        seen: Errors of each output, on the held-out samples one by one, and golden outputs.
        single: Agreements of the tasks there, of single inferences.
        confidence: How much higher the mean confidence is than the float model's, by output.
    """

    verdict: Verdict
    count: int
    seen: Seen
    single: tuple[Agreement, ...]
    confidence: dict[str, float] = {}


def judge_on_holdout(
    run: Run, budgets: AccuracyBudgets, inputs: EvaluationInputs
) -> HoldoutVerdict:
    """Evaluate a model on the held-out samples.

    Args:
        run: The model, with the outputs that are only watched.
        budgets: Required shares of each task.
        inputs: Have the held-out samples, and the metric or the labels that judge.

    Raises:
        BuildError: The model cannot be run.
    """
    samples = inputs.split.held_out
    judge = CandidateJudge(inputs.float_source, samples, budgets, inputs.metric, MOST_SAMPLES)
    got = [samples.golden(index, run(feeds)) for index, feeds in enumerate(samples)]
    count = judge.count
    if inputs.labelled is not None:
        count = len(inputs.labelled.labels)
        verdict = judge_by_labels(inputs.labelled, run, inputs.float_source, budgets)
    elif inputs.metric is not None or samples.states or samples.decoder:
        verdict = judge.judge(run, at_least=-math.inf)
    else:
        verdict = judge.judge_single(got)
    return HoldoutVerdict(
        verdict=without_dear_forgiveness(verdict),
        count=count,
        seen=Seen(
            errors=judge.reference.errors(got),
            expected=tuple(judge.reference.expected[place] for place in inputs.split.golden),
            got=tuple(got[place] for place in inputs.split.golden),
        ),
        single=judge.reference.measure(got),
        confidence=confidence_shifts(
            sketched_parts(judge.reference.description), judge.reference.expected, got
        ),
    )
