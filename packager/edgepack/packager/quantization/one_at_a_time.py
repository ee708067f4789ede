"""What lowering each node alone costs, measured on a model built for it.

For lowerings that no switch inside the graph turns on and off: each node's model is built, opened
and run. That is seconds for each, so where there are many nodes neighbours are measured together.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.metrics.noise import NoiseMeter
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    Measured,
    NodeSensitivity,
)
from edgepack.packager.runtime.model_run import Outputs, Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.tensors.sequence import Samples

_MOST_MODELS = 64
_MOST_SAMPLES = 8
_MOST_RUNS = 300


def rank_one_at_a_time(
    float_model: onnx.ModelProto,
    names: Sequence[str],
    spec: CandidateSpec,
    build: Callable[[CandidateSpec], BuiltCandidate],
    open_: Callable[[Path], Run],
    samples: Samples,
    *,
    work_dir: Path,
    progress: Progress,
    measured: Measured | None = None,
) -> tuple[NodeSensitivity, ...]:
    """Orders nodes by what they cost, worst first.

    Args:
        float_model: The float model.
        names: The nodes that can be lowered, in graph order.
        spec: How each is lowered; the others stay float.
        build: Makes a candidate.
        open_: Opens a model where it is measured.
        samples: Samples to measure on; the first few are read.
        work_dir: Folder for the models.
        progress: Told about each model.
        measured: See `CandidateMaker.rank`.

    Returns:
        One entry a node; nodes that were measured together share their cost.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    path = work_dir / "ranking.onnx"
    groups = [list(group) for group in np.array_split(names, min(len(names), _MOST_MODELS))]
    count = min(samples.count, _MOST_SAMPLES, max(1, _MOST_RUNS // len(groups)))
    chosen = samples.pick(range(count))

    def outputs(model: onnx.ModelProto) -> list[Outputs]:
        save_model(model, path)
        run = open_(path)
        return [without_padding(run(feeds), feeds, samples.mask) for feeds in chosen]

    meter = NoiseMeter(outputs(float_model), samples.meanings)
    ranked: list[NodeSensitivity] = []
    known = {} if measured is None else measured
    for number, group in enumerate(groups, start=1):
        key = str(group[0])
        if key not in known:
            others = tuple(name for name in names if name not in group)
            alone = build(replace(spec, float_nodes=others)).model
            known[key] = meter.mean_noise(outputs(alone)) / len(group)
        ranked.extend(NodeSensitivity(name=str(name), noise=known[key]) for name in group)
        progress(BuildStep(what="ranking nodes", done=number, total=len(groups)))
    return tuple(sorted(ranked, key=lambda node: (-node.noise, node.name)))
