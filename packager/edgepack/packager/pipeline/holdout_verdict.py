"""The verdict on a variant's model, by samples that nothing was chosen by."""

import math

import msgspec
from msgspec.structs import replace

from edgepack.bundle.drift import confidence_shifts, sketched_parts
from edgepack.number_format import format_metric
from edgepack.packager.gates.labels import judge_by_labels
from edgepack.packager.gates.metric_bound import bound_metric
from edgepack.packager.gates.proof import without_dear_forgiveness
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.gates.user_metric import Metric, doubt_metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.profiles.schema import AccuracyBudgets
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.coverage import TAIL
from edgepack.packager.samples.split import CALIBRATION_SHARE, SEARCH_SHARE
from edgepack.packager.search.judge import MOST_SAMPLES, CandidateJudge
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import FEWEST_FOR_SPREAD
from edgepack.tasks.contract import LOSS, Agreement
from edgepack.tasks.values.strict import RELATIVE
from edgepack.text import counted


class HoldoutVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of the held-out samples on a model.

    Attributes:
        verdict: The verdict.
        count: Number of held-out samples, or series.
        are_series: Whether these are series of samples.
        seen: Errors of each output, on the held-out samples one by one, and golden outputs.
        single: Agreements of the tasks there, of single inferences.
        confidence: How much higher the mean confidence is than the float model's, by output.
    """

    verdict: Verdict
    count: int
    are_series: bool = False
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
    if inputs.metric is not None and inputs.labelled is None:
        verdict = _with_bound(verdict, inputs.metric, inputs.float_source, run)
    is_by_tasks = inputs.metric is None and inputs.labelled is None
    if is_by_tasks and not samples.states and not samples.decoder and count < FEWEST_FOR_SPREAD:
        verdict = replace(verdict, weak=(*verdict.weak, _doubt_few(count)))
    if samples.doubt and is_by_tasks:
        verdict = replace(verdict, weak=(*verdict.weak, samples.doubt))
    return HoldoutVerdict(
        verdict=without_dear_forgiveness(verdict),
        count=count,
        are_series=bool(samples.steps) and inputs.labelled is None,
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


def doubt_extremes(
    run: Run, budgets: AccuracyBudgets, inputs: EvaluationInputs, held_out: HoldoutVerdict
) -> HoldoutVerdict:
    """Return the verdict, weak if likely extremes of an input lose 1 % of the task.

    About one of as many inferences as there are samples for ranges is such an extreme: the held-out
    samples are judged again with one more. Medians do not see one more: such a task may lose a
    tenth of the extremes alone.

    Args:
        run: The model; the held-out samples run again.
        budgets: Required shares of each task.
        inputs: Have the samples with likely extremes.
        held_out: Verdict of the held-out samples.

    Raises:
        BuildError: The model cannot be run.
    """
    extremes, verdict = inputs.split.extremes, held_out.verdict
    if extremes is None or inputs.metric or inputs.labelled or verdict.task_kept is None:
        return held_out
    samples, known = inputs.split.held_out, inputs.split.calibration.count

    def judge(some: Samples) -> Verdict:
        candidates = CandidateJudge(inputs.float_source, some, budgets, None)
        return candidates.judge(run, at_least=-math.inf)

    one_more = [judge(samples.extend([(extremes, place)])) for place in range(extremes.count)]
    likely = sorted(one_more, key=_kept)[(extremes.count - 1) // 2]
    on = f"on {samples.count} samples and one more"
    lost = (verdict.task_kept - _kept(likely)) * (samples.count + 1) / (known + 1)
    if lost <= LOSS and _is_median(verdict):
        likely, on = judge(extremes), f"on {counted(extremes.count, 'sample')} of these alone"
        lost = (verdict.task_kept - _kept(likely)) / TAIL
    if lost <= LOSS:
        return held_out
    because = (
        f"about one of {known + 1} inferences will go beyond the calibration's range, and such "
        "likely extremes will lose far more: "
        f"{likely.words or f'{likely.what} {format_metric(likely.value)}'} {on}. To settle it: "
        "samples with such values, or a limit or a scale of the input before the model"
    )
    return replace(held_out, verdict=replace(verdict, weak=(*verdict.weak, because)))


def _with_bound(verdict: Verdict, metric: Metric, float_run: Run, run: Run) -> Verdict:
    """Return a metric's verdict with its bound, and with the doubts of the metric itself."""
    doubts: tuple[str, ...] = ()
    if verdict.task_kept == 1.0:
        doubts = doubt_metric(metric, float_run, verdict.float_value)
    bound = bound_metric(metric, float_run, run, verdict)
    return replace(
        verdict,
        remarks=(*verdict.remarks, *filter(None, (bound.words,))),
        weak=(*verdict.weak, *doubts, *filter(None, (bound.doubt,))),
    )


def _doubt_few(count: int) -> str:
    """Return why a verdict on few held-out samples is weak: columns have no spread to tell."""
    wanted = math.ceil(FEWEST_FOR_SPREAD / (1.0 - CALIBRATION_SHARE - SEARCH_SHARE))
    return (
        f"only {counted(count, 'sample')} {'was' if count == 1 else 'were'} held out, and others "
        f"may be of another kind. To settle it: {wanted} samples or more, or {FEWEST_FOR_SPREAD} "
        "or more with --evaluation"
    )


def _kept(verdict: Verdict) -> float:
    """Return the kept share of the task; 0 where it is unknown."""
    return verdict.task_kept or 0.0


def _is_median(verdict: Verdict) -> bool:
    """Return True if a median measures an output."""
    measures = (measure for one in verdict.agreements for measure in one.measures)
    return any(measure.scale is RELATIVE for measure in measures)
