"""Table of candidate makers by lowering pass."""

from collections.abc import Mapping
from typing import Any

from edgepack.packager.profiles.pass_settings import (
    Float16,
    Lowering,
    Quantize,
    QuantizeDynamic,
    QuantizeWeights,
)
from edgepack.packager.quantization.contract import PassCandidateMaker
from edgepack.packager.quantization.dynamic.candidate_maker import DynamicCandidateMaker
from edgepack.packager.quantization.float16.candidate_maker import Float16CandidateMaker
from edgepack.packager.quantization.quark.candidate_maker import QuarkCandidateMaker
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.quantization.weight_only.candidate_maker import WeightOnlyCandidateMaker

_MAKERS: Mapping[tuple[type, str], type[PassCandidateMaker[Any]]] = {
    (Quantize, "edgepack"): StaticCandidateMaker,
    (Quantize, "quark"): QuarkCandidateMaker,
    (QuantizeDynamic, ""): DynamicCandidateMaker,
    (QuantizeWeights, ""): WeightOnlyCandidateMaker,
    (Float16, ""): Float16CandidateMaker,
}
"""By pass and `backend`."""


def maker_for(settings: Lowering) -> type[PassCandidateMaker[Any]]:
    """Return the candidate maker of a profile's lowering pass."""
    return _MAKERS[type(settings), settings.backend if isinstance(settings, Quantize) else ""]
