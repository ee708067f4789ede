"""Which nodes cost the accuracy: measured one at a time, the others float."""

from functools import partial

import numpy as np

from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.noise import NoiseMeter
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.gated_model import GatedModel
from edgepack.packager.samples.sequence import Samples
from edgepack.packager.search.maker import NodeCost

_MOST_FIRST_RUNS = 300
_FIRST_SAMPLES = 2
_MOST_SAMPLES = 8


def rank_nodes(gated: GatedModel, samples: Samples, *, progress: Progress) -> tuple[NodeCost, ...]:
    """Orders nodes by what they cost, worst first.

    All nodes are measured on a few samples, the costlier half of them on as many more, and so on:
    only which nodes cost the most is worth many runs. How many depends on the number of nodes
    alone, so that the same inputs give the same order on a slower machine.

    Args:
        gated: The model with gates.
        samples: Samples to measure on; the first ones are read.
        progress: Told about each node.

    Returns:
        One entry a node; those that were measured on more samples come first.
    """
    count = len(gated.names)
    none = np.zeros(count, dtype=np.bool_)
    leaders = list(range(count))
    noises: dict[int, list[float]] = {number: [] for number in leaders}
    seen, batch = 0, min(_FIRST_SAMPLES, max(1, _MOST_FIRST_RUNS // (count + 1)))
    while leaders and seen < min(_MOST_SAMPLES, samples.count):
        chosen = samples.pick(range(seen, min(seen + batch, samples.count)))
        expected = run_samples(partial(gated.run, quantized=none), chosen)
        meter = NoiseMeter(expected, samples.meanings)
        for done, number in enumerate(leaders, start=1):
            gates = none.copy()
            gates[number] = True
            got = run_samples(partial(gated.run, quantized=gates), chosen)
            noises[number] += [meter.mean_noise(got)] * chosen.count
            progress("ranking nodes", done, len(leaders))
        seen, batch = seen + chosen.count, seen + chosen.count
        leaders.sort(key=lambda number: (-np.mean(noises[number]), gated.names[number]))
        leaders = leaders[: len(leaders) // 2]

    def place(number: int) -> tuple[int, float, str]:
        return -len(noises[number]), -float(np.mean(noises[number])), gated.names[number]

    return tuple(
        NodeCost(name=gated.names[number], noise=float(np.mean(noises[number])))
        for number in sorted(noises, key=place)
    )
