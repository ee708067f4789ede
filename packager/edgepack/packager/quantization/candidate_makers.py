"""Which candidate maker makes the candidates of which lowering pass."""

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from edgepack.packager.profiles.pass_settings import (
    Float16,
    Lowering,
    Quantize,
    QuantizeDynamic,
    QuantizeWeights,
)
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import CandidateMaker
from edgepack.packager.quantization.dynamic.candidate_maker import DynamicCandidateMaker
from edgepack.packager.quantization.float16.candidate_maker import Float16CandidateMaker
from edgepack.packager.quantization.quark.candidate_maker import QuarkCandidateMaker
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.quantization.weight_only.candidate_maker import WeightOnlyCandidateMaker
from edgepack.packager.tensors.sequence import Samples

_MAKERS: Mapping[tuple[type, str], Callable[..., CandidateMaker]] = {
    (Quantize, "edgepack"): StaticCandidateMaker,
    (Quantize, "quark"): QuarkCandidateMaker,
    (QuantizeDynamic, ""): DynamicCandidateMaker,
    (QuantizeWeights, ""): WeightOnlyCandidateMaker,
    (Float16, ""): Float16CandidateMaker,
}
"""By pass and `backend`. Each is called as `make_candidate_maker` is."""


def make_candidate_maker(
    model: onnx.ModelProto,
    settings: Lowering,
    samples: Samples,
    *,
    work_dir: Path,
    progress: Progress,
) -> CandidateMaker:
    """The candidate maker for a lowering pass.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's lowering pass.
        samples: Calibration samples.
        work_dir: Folder for what it writes.
        progress: Told about calibration.

    Raises:
        BuildError: Calibration failed, or another's quantizer is nowhere to be found.
    """
    backend = settings.backend if isinstance(settings, Quantize) else ""
    make = _MAKERS[type(settings), backend]
    return make(model, settings, samples, work_dir=work_dir, progress=progress)
