"""Which candidate to make, in few words."""

from collections.abc import Iterable
from typing import Any

from edgepack.packager.quantization.contract import CandidateSpec, QuantizationMethod


def spec(
    base: str,
    float_nodes: Iterable[str] = (),
    high_precision_nodes: Iterable[str] = (),
    **method: Any,
) -> CandidateSpec:
    """A candidate; `method` are further fields of `QuantizationMethod`."""
    return CandidateSpec(
        method=QuantizationMethod(base=base, **method),
        float_nodes=tuple(float_nodes),
        high_precision_nodes=tuple(high_precision_nodes),
    )
