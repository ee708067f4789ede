"""Which nodes cost the accuracy: measured one at a time, the others float."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from edgepack.packager.judging.chains import run_samples
from edgepack.packager.judging.distance import OutputKind, measure_distance
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.ablation import GatedModel
from edgepack.packager.samples.sequence import Samples
from edgepack.packager.search.maker import NodeCost

_MOST_RUNS = 300
_MOST_SAMPLES = 8


def rank_nodes(gated: GatedModel, samples: Samples, *, progress: Progress) -> tuple[NodeCost, ...]:
    """Orders nodes by what they cost, worst first.

    Every node sees the same samples, in chains where the model has states; how many depends on
    the number of nodes alone, so that the same inputs give the same order on a slower machine.

    Args:
        gated: The model with gates.
        samples: Samples to measure on.
        progress: Told about each node.

    Returns:
        One entry a node.
    """
    count = len(gated.names)
    none = np.zeros(count, dtype=np.bool_)
    fits = min(_MOST_SAMPLES, max(1, _MOST_RUNS // (count + 1)))
    chosen = samples.pick(range(min(samples.count, fits)))
    expected = run_samples(partial(gated.run, quantized=none), chosen)
    costs = []
    for number, name in enumerate(gated.names):
        gates = none.copy()
        gates[number] = True
        got = run_samples(partial(gated.run, quantized=gates), chosen)
        costs.append(NodeCost(name=name, noise=_noise(expected, got)))
        progress("ranking nodes", number + 1, count)
    return tuple(sorted(costs, key=lambda cost: (-cost.noise, cost.name)))


def _noise(expected: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    noises = [
        measure_distance(
            name,
            OutputKind.VALUES,
            [outputs[name] for outputs in expected],
            [outputs[name] for outputs in got],
        ).nrmse
        for name, value in expected[0].items()
        if value.dtype.kind == "f"
    ]
    return float(np.mean(noises)) if noises else 0.0
