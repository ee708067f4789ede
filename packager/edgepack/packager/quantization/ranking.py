"""Which nodes cost the accuracy: measured one at a time, the others float."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.packager.accuracy import OutputKind, measure_distance
from edgepack.packager.measure import Outputs
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.ablation import GatedModel
from edgepack.packager.samples import Samples


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """What quantizing one node alone does.

    Attributes:
        name: The node.
        noise: Mean over the outputs of the root-mean-square error over the root-mean-square.
    """

    name: str
    noise: float


def rank_nodes(
    gated: GatedModel, samples: Samples, *, limit_s: float, progress: Progress
) -> tuple[NodeCost, ...]:
    """Orders nodes by what they cost, worst first.

    The number of samples is what fits the time; every node sees the same ones.

    Args:
        gated: The model with gates.
        samples: Samples to measure on.
        limit_s: About how long it may take, seconds.
        progress: Told about each node.

    Returns:
        One entry a node.
    """
    count = len(gated.names)
    none = np.zeros(count, dtype=np.bool_)
    feeds = samples.read(0)
    start = time.perf_counter()
    gated.run(feeds, none)
    took_s = max(time.perf_counter() - start, 1e-5)
    fits = int(limit_s / (took_s * (count + 1)))
    chosen = samples.pick(range(max(1, min(samples.count, fits, 16))))
    expected = [gated.run(feeds, none) for feeds in chosen]
    costs = []
    for number, name in enumerate(gated.names):
        gates = none.copy()
        gates[number] = True
        got = [gated.run(feeds, gates) for feeds in chosen]
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
