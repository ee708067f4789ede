"""Whose quantizer makes the candidates of static quantization: ours, or another."""

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import CandidateMaker
from edgepack.packager.quantization.quark.maker import QuarkQuantizer
from edgepack.packager.quantization.static.candidate import Quantizer
from edgepack.packager.tensors.sequence import Samples

_BACK_ENDS: Mapping[str, Callable[..., CandidateMaker]] = {
    "edgepack": Quantizer,
    "quark": QuarkQuantizer,
}


def make_static(
    model: onnx.ModelProto,
    settings: Quantize,
    samples: Samples,
    *,
    work_dir: Path,
    progress: Progress,
) -> CandidateMaker:
    """The maker for static quantization; see `make_maker`."""
    make = _BACK_ENDS[settings.backend]
    return make(model, settings, samples, work_dir=work_dir, progress=progress)
