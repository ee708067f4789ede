"""Cost of lowering each node alone, measured on separate models.

For lowerings that no switch inside the graph turns on and off: each node's model is built, opened
and run. That is seconds for each, so where there are many nodes neighbours are measured together.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.workload import Workload
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import (
    CandidateSpec,
    Measured,
    NodeSensitivity,
    PassCandidateMaker,
    Ranked,
)
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.tasks.noise import NoiseMeter
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.tokens.texts import mean_divergence

_MOST_MODELS = 64
_MOST_SAMPLES = 8
_MOST_RUNS = 300
_Settings = TypeVar("_Settings")


class OneAtATimeMaker(PassCandidateMaker[_Settings]):
    """A candidate maker that ranks nodes by a candidate in which each alone is lowered."""

    _loads: Mapping[str, Workload]
    """What lowering each node saves; it is found out as the maker is made."""

    def _open(self, path: Path) -> Run:
        """Open a model at the place of measurement."""
        return open_plain(path)

    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Rank nodes; see `CandidateMaker`. Nodes measured together share their cost."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        path = self.work_dir / "ranking.onnx"
        groups = [
            list(group) for group in np.array_split(self.names, min(len(self.names), _MOST_MODELS))
        ]
        chosen = samples.first(min(_MOST_SAMPLES, max(1, _MOST_RUNS // len(groups))))

        def outputs(model: onnx.ModelProto) -> list[Outputs]:
            save_model(model, path)
            run = self._open(path)
            return [
                without_padding(chosen.evaluated(index, run(feeds)), feeds, samples.mask)
                for index, feeds in enumerate(chosen)
            ]

        noise_of = _meter(samples, outputs(self.model))
        ranked: list[NodeSensitivity] = []
        known = {} if measured is None else measured
        for number, group in enumerate(groups, start=1):
            key = str(group[0])
            if key not in known:
                others = tuple(name for name in self.names if name not in group)
                alone = self.build(replace(spec, float_nodes=others)).model
                known[key] = noise_of(outputs(alone)) / len(group)
            ranked.extend(NodeSensitivity(name=str(name), noise=known[key]) for name in group)
            progress(BuildStep(what="ranking nodes", done=number, total=len(groups)))
        ranked.sort(key=lambda node: (-node.noise, node.name))
        return with_workloads(ranked, self._loads)


def _meter(samples: Samples, expected: list[Outputs]) -> Callable[[list[Outputs]], float]:
    """Return what measures the noise of outputs: of texts the root of their mean divergence.

    Divergences of nodes add up as the powers of noises do, so that both are squared later.
    """
    if samples.decoder is None or not samples.are_texts:
        return NoiseMeter(expected, samples.description).mean_noise
    name = samples.decoder.scores
    wanted = [outputs[name] for outputs in expected]
    return lambda got: math.sqrt(mean_divergence(wanted, [outputs[name] for outputs in got]))
