"""Ranking of nodes by their cost: measured individually, with all other nodes float."""

from functools import partial

import numpy as np

from edgepack.packager.metrics.chains import run_samples
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import Measured, NodeSensitivity, Ranked
from edgepack.packager.quantization.static.switchable_model import SwitchableModel
from edgepack.packager.tasks.noise import NoiseMeter, order_by_information
from edgepack.packager.tensors.sequence import Samples

_MOST_FIRST_RUNS = 300
_FIRST_SAMPLES = 2
_MOST_SAMPLES = 8
_MOST_LOOKED_AT = 32
"""Samples among which those are looked for that tell the most: one float inference each."""


def rank_nodes(
    model: SwitchableModel, samples: Samples, *, progress: Progress, measured: Measured = None
) -> Ranked:
    """Order nodes by cost, worst first.

    All nodes are measured on a few samples, the costlier half on as many more, and so on: only the
    costliest nodes are worth many runs. How many depends on the number of nodes alone, so that the
    same inputs give the same order on a slower machine. First comes the sample on which the float
    model says the most: by a picture without objects, all that makes a detector's scores would seem
    to cost nothing. Then usual samples and informative samples take turns: by the loudest samples
    alone the order was worse for a text recognizer, whose usual samples are different. Samples with
    states stay in the order of time.

    Args:
        model: The model with switches.
        samples: Samples to measure on.
        progress: Called for each node.
        measured: See `CandidateMaker.rank`.

    Returns:
        An entry per node; nodes measured on more samples come first.
    """
    count = len(model.names)
    none = np.zeros(count, dtype=np.bool_)
    known = {} if measured is None else measured
    if not samples.states:
        looked_at = samples.first(_MOST_LOOKED_AT)
        said = run_samples(partial(model.run, quantized=none), looked_at)
        telling = order_by_information(said, samples.description)
        turns = zip(telling, range(looked_at.count), strict=True)
        samples = looked_at.pick(tuple(dict.fromkeys(index for both in turns for index in both)))
    leaders = list(range(count))
    noises: dict[int, list[float]] = {number: [] for number in leaders}
    seen, batch = 0, min(_FIRST_SAMPLES, max(1, _MOST_FIRST_RUNS // (count + 1)))
    while leaders and seen < min(_MOST_SAMPLES, samples.count):
        chosen = samples.pick(range(seen, min(seen + batch, samples.count)))
        expected = run_samples(partial(model.run, quantized=none), chosen)
        meter = NoiseMeter(expected, samples.description)
        for done, number in enumerate(leaders, start=1):
            key = f"{model.names[number]} from {seen}"
            if key not in known:
                alone = none.copy()
                alone[number] = True
                got = run_samples(partial(model.run, quantized=alone), chosen)
                known[key] = meter.mean_noise(got)
            noises[number] += [known[key]] * chosen.count
            progress(BuildStep(what="ranking nodes", done=done, total=len(leaders)))
        seen, batch = seen + chosen.count, seen + chosen.count
        leaders.sort(key=lambda number: (-np.mean(noises[number]), model.names[number]))
        leaders = leaders[: len(leaders) // 2]

    def place(number: int) -> tuple[int, float, str]:
        return -len(noises[number]), -float(np.mean(noises[number])), model.names[number]

    return tuple(
        NodeSensitivity(name=model.names[number], noise=float(np.mean(noises[number])))
        for number in sorted(noises, key=place)
    )
