"""The verdict on a variant's model, by samples that nothing was chosen by."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.packager.gates.labels import LabelledSamples, judge_by_labels
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.metrics.inspection import Inspection
from edgepack.packager.pipeline.prepared_combination import SearchedCombination
from edgepack.packager.pipeline.provider_validation import ProviderRun
from edgepack.packager.progress import Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.tensors.sequence import Samples


class HoldoutSet(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict is given by.

    Attributes:
        float_source: Runs the source model.
        samples: Samples that nothing was chosen by.
        metric: The user's own metric, or None.
        labelled: Held-out samples with labels, which then give the verdict; or None.
    """

    float_source: Run
    samples: Samples
    metric: Metric | None
    labelled: LabelledSamples | None


class ValidatedCombination(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its verdict, within the budget or not.

    Attributes:
        searched: What was prepared; its search cannot go on any more.
        size_bytes: Size of the model that was written.
        verdict: The verdict.
        count: How many held-out samples gave it.
        distances: By output, on the held-out samples.
        ran: What came of its run on the provider; None where that cannot run here.
        inspection: What a look inside showed; None where nothing was lowered.
        notes: How often the search went on, and why.
    """

    searched: SearchedCombination
    size_bytes: int
    verdict: Verdict
    count: int
    distances: Sequence[OutputDistance]
    ran: ProviderRun | None = None
    inspection: Inspection | None = None
    notes: tuple[str, ...] = ()


def judge_on_holdout(
    searched: SearchedCombination,
    size_bytes: int,
    model: Path,
    held_out: HoldoutSet,
    progress: Progress,
) -> ValidatedCombination:
    """Judges a model by the held-out samples, and runs it nowhere else.

    Args:
        searched: What was prepared.
        size_bytes: Size of the variant's model.
        model: The model, with the outputs that are only watched.
        held_out: What gives the verdict.
        progress: Told about it.

    Raises:
        BuildError: The model cannot be run.
    """
    samples, float_source, gate = held_out.samples, held_out.float_source, searched.profile.gates
    judge = CandidateJudge(float_source, samples, gate.accuracy, held_out.metric)
    progress(f"{searched.profile.name}: held-out samples", 0, samples.count)
    run = searched.evaluator.open(model)
    got = [run(feeds) for feeds in samples]
    count = samples.count
    if held_out.labelled is not None:
        count = len(held_out.labelled.labels)
        verdict = judge_by_labels(held_out.labelled, run, float_source, gate.accuracy)
    elif held_out.metric is not None or samples.states:
        verdict = judge.judge(run)
    else:
        verdict = judge.judge_single(got)
    return ValidatedCombination(
        searched=searched,
        size_bytes=size_bytes,
        verdict=verdict,
        count=count,
        distances=judge.reference.distances(got),
    )
