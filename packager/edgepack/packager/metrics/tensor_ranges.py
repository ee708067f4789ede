"""Range of each scale of a quantized model, and values outside the range."""

from collections.abc import Sequence

import msgspec
import numpy as np
import onnx
from msgspec.structs import asdict, replace

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.tensors.observations import Observation
from edgepack.tasks.arrays import Floats

OUTLIER_FACTOR = 4.0
"""A range this many times as wide as 99.9 % of its values need spends two bits on the rest."""

_CENTRAL = (0.0005, 0.9995)


class ActivationScale(msgspec.Struct, frozen=True, kw_only=True):
    """Scale of an activation in the model's file.

    Attributes:
        tensor: The float model's name of the tensor.
        dtype: Integer type, numpy's name.
        scale, zero_point: real = (integer - zero_point) * scale.
    """

    tensor: str
    dtype: str
    scale: float
    zero_point: int

    @property
    def covered(self) -> tuple[float, float]:
        """Least and greatest real number that can be expressed."""
        limits = np.iinfo(self.dtype)
        return (
            (int(limits.min) - self.zero_point) * self.scale,
            (int(limits.max) - self.zero_point) * self.scale,
        )


class TensorRange(ActivationScale, frozen=True, kw_only=True):
    """Covered range of a scale and the tensor's values; reals with four digits.

    Attributes:
        covered_low, covered_high: Least and greatest real number that can be expressed.
        seen_low, seen_high: Least and greatest value that calibration saw, and of the held-out
            samples where nothing was calibrated here.
        central_low, central_high: Between these lie 99.9 % of the values on held-out samples.
        clipped_share: Share of the held-out samples' values that saturate, 0…1.
        outlier_factor: Ratio of the values' range to the range of 99.9 % of the values; 0 if the
            latter are all alike.
    """

    covered_low: float
    covered_high: float
    seen_low: float
    seen_high: float
    central_low: float
    central_high: float
    clipped_share: float
    outlier_factor: float

    @property
    def has_outliers(self) -> bool:
        """True if few values make the range much wider than all others need."""
        return self.outlier_factor >= OUTLIER_FACTOR


def find_scales(
    lowered: onnx.GraphProto, reference: onnx.GraphProto
) -> tuple[ActivationScale, ...]:
    """Find the activations with a single scale, in graph order, each once.

    Args:
        lowered: The quantized graph.
        reference: The float graph, with the names for people.
    """
    index = index_graph(lowered)
    known = {name for node in reference.node for name in node.output if name}
    known |= {value.name for value in reference.input}
    found: dict[str, ActivationScale] = {}
    for node in lowered.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            continue
        scale, zero_point = (index.constant(name) for name in node.input[1:3])
        if scale is None or zero_point is None or scale.size != 1:
            continue
        readers = (lowered.node[i] for i in index.consumers.get(node.output[0], ()))
        names = [node.input[0], *(name for reader in readers for name in reader.output)]
        tensor = next((name for name in names if name in known), None)
        if tensor is not None and zero_point.dtype.kind in "iu":
            found[tensor] = ActivationScale(
                tensor=tensor,
                dtype=zero_point.dtype.name,
                scale=float(scale.reshape(())),
                zero_point=int(zero_point.reshape(())),
            )
    return tuple(found.values())


def describe_range(
    scale: ActivationScale, calibrated: Observation | None, values: Sequence[Floats]
) -> TensorRange:
    """Compare a scale with the float model's values.

    Args:
        scale: The scale.
        calibrated: Observation of the tensor at calibration, or None.
        values: float64 (values,), an array per held-out sample; not empty.
    """
    flat = np.concatenate(values)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        flat = np.zeros(1)
    low, high = scale.covered
    slack = scale.scale / 2
    # `np.quantile`, without the masked arrays that it imports
    ranked, places = np.sort(flat), np.arange(flat.size)
    central = np.interp(np.multiply(_CENTRAL, flat.size - 1), places, ranked)
    seen = (float(flat.min()), float(flat.max()))
    if calibrated is not None:
        seen = (calibrated.low, calibrated.high)
    needed = float(central[1] - central[0])
    return TensorRange(
        **asdict(replace(scale, scale=_digits(scale.scale, 6))),
        covered_low=_digits(low),
        covered_high=_digits(high),
        seen_low=_digits(seen[0]),
        seen_high=_digits(seen[1]),
        central_low=_digits(float(central[0])),
        central_high=_digits(float(central[1])),
        clipped_share=_digits(float(np.mean((flat < low - slack) | (flat > high + slack))), 3),
        outlier_factor=_digits((seen[1] - seen[0]) / needed, 3) if needed > 0.0 else 0.0,
    )


def _digits(value: float, count: int = 4) -> float:
    """Round to `count` significant digits, without a minus before zero."""
    return float(f"{value:.{count}g}") + 0.0
