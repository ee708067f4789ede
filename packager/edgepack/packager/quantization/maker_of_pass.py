"""Which maker makes the candidates of which lowering pass."""

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
from edgepack.packager.quantization.back_ends import make_static
from edgepack.packager.quantization.contract import CandidateMaker
from edgepack.packager.quantization.dynamic.maker import DynamicQuantizer
from edgepack.packager.quantization.float16.maker import Float16Maker
from edgepack.packager.quantization.weight_only.maker import WeightQuantizer
from edgepack.packager.tensors.sequence import Samples

_MAKERS: Mapping[type, Callable[..., CandidateMaker]] = {
    Quantize: make_static,
    Float16: Float16Maker,
    QuantizeDynamic: DynamicQuantizer,
    QuantizeWeights: WeightQuantizer,
}
"""Each is called with model, settings, samples, and the keywords work_dir and progress."""


def make_maker(
    model: onnx.ModelProto,
    settings: Lowering,
    samples: Samples,
    *,
    work_dir: Path,
    progress: Progress,
) -> CandidateMaker:
    """The maker for a lowering pass.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's lowering pass.
        samples: Calibration samples.
        work_dir: Folder for what it writes.
        progress: Told about calibration.
    """
    make = _MAKERS[type(settings)]
    return make(model, settings, samples, work_dir=work_dir, progress=progress)
