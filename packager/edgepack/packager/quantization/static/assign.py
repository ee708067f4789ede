"""Gives every tensor of a plan its scale."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.calibration_methods import ScaleCache
from edgepack.packager.quantization.static.plan import NodePlan, Plan, WeightUse, tied_tensors
from edgepack.packager.quantization.static.scales import (
    IntegerType,
    Scale,
    fixed_scale,
    off_powers_of_two,
    quantize,
    scale_of_range,
    widen_for_bias,
)
from edgepack.packager.tensors.observations import Observation
from edgepack.tasks.arrays import Tensor

_FIXED: Mapping[tuple[str, str], tuple[float, int]] = {
    # QNN EP, quant_config.py: 16-bit Sigmoid and Tanh must have these (scale, zero point).
    ("Sigmoid", "uint16"): (1.0 / 65536.0, 0),
    ("Sigmoid", "int16"): (1.0 / 32768.0, 0),
    ("Tanh", "uint16"): (1.0 / 32768.0, 32768),
    ("Tanh", "int16"): (1.0 / 32768.0, 0),
    # The HTP simulator (onnxruntime-qnn 2.7.0) computes 0…1 by this scale whatever the graph says:
    # a HardSigmoid that reached .63 came out as .63 of itself.
    ("HardSigmoid", "uint16"): (1.0 / 65536.0, 0),
    # Beyond the range of its samples it came out with the other sign there: -.71 as .60.
    ("LpNormalization", "uint16"): (1.0 / 32768.0, 32768),
}

_LEAST: Mapping[tuple[str, str], float] = {
    # A Log whose scale is 2**-14 or less, a range of 4, is one constant on the same simulator.
    ("Log", "uint16"): 1.01 * 2.0**-14,
}

_OFF_POWERS_OF_TWO = frozenset({("HardSwish", "uint16")})
"""What no product may be brought to by a power of two: where input scale * weight scale / output
scale is up to three float32 numbers below one, the same simulator computes x / 2 for the HardSwish
of all x > 0. In a single channel that put a text classifier off by 11 %."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Scales of a plan.

    Attributes:
        activations: By tensor, for the nodes of usual precision.
        high_precision: By tensor, for all other nodes; a tensor of both kinds of nodes has two
            scales.
        weights: By use; widened where a bias would not fit otherwise.
        integers: By use, of weights that are not rounded to the nearest integer.
    """

    activations: dict[str, Scale]
    high_precision: dict[str, Scale]
    weights: dict[WeightUse, Scale]
    integers: Mapping[WeightUse, npt.NDArray[np.integer]] = msgspec.field(default_factory=dict)

    def of(self, node: NodePlan, name: str) -> Scale:
        """Return the scale that a node uses for a tensor."""
        return (self.high_precision if node.is_high_precision else self.activations)[name]

    def round_weight(self, use: WeightUse, values: Tensor) -> npt.NDArray[np.integer]:
        """Return the integers of a weight."""
        given = self.integers.get(use)
        if given is not None:
            return given
        return quantize(values.astype(np.float32), self.weights[use])


def activation_type(settings: Quantize, *, is_high_precision: bool) -> IntegerType:
    """Return the integer type of activations."""
    return IntegerType(
        dtype=settings.high_precision_activations if is_high_precision else settings.activations,
        symmetric=settings.activation_symmetric,
        power_of_two=settings.scales == "power_of_two",
        min_real_range=settings.min_real_range,
    )


def weight_type(settings: Quantize, *, is_per_channel: bool) -> IntegerType:
    """Return the integer type of weights."""
    own = settings.per_channel_weights if is_per_channel else ""
    return IntegerType(
        dtype=own or settings.weights,
        symmetric=settings.weight_symmetric or is_per_channel,
        power_of_two=settings.scales == "power_of_two",
        min_real_range=settings.min_real_range,
        reduce_range=settings.reduce_range,
    )


def assign_scales(
    plan: Plan, observed: Mapping[str, Observation], method: str, cache: ScaleCache
) -> Assignment:
    """Choose the scale of every activation and weight of a plan.

    Args:
        plan: The quantized parts.
        observed: Observations at calibration, for every activation that is not a constant.
        method: The calibration method.
        cache: Chooses and remembers the scales of the plan's graph.

    Returns:
        The scales.
    """
    index = cache.index
    settings = cache.settings

    def assign(is_high_precision: bool) -> dict[str, Scale]:
        kind = activation_type(settings, is_high_precision=is_high_precision)
        nodes = [node for node in plan.nodes if node.is_high_precision == is_high_precision]
        scales = {
            name: cache.of_activation(name, method, observed.get(name), kind)
            for node in nodes
            for name in node.tensors
        }
        fixed = _fixed_scales(index, nodes, kind, scales) if settings.fixed_scales else {}
        scales |= fixed
        for group in tied_tensors(index, nodes, settings):
            given = [fixed[name] for name in group if name in fixed]
            shared = given[0] if given else _cover([scales[name] for name in group], kind)
            scales |= dict.fromkeys(group, shared)
        return scales

    unweighted = Assignment(activations=assign(False), high_precision=assign(True), weights={})
    return replace(unweighted, weights=_assign_weights(plan, unweighted, cache))


def _fixed_scales(
    index: GraphIndex, nodes: Sequence[NodePlan], kind: IntegerType, scales: Mapping[str, Scale]
) -> dict[str, Scale]:
    """Return the scales of outputs with a fixed scale, or with a least scale."""
    fixed: dict[str, Scale] = {}
    for node in nodes:
        key = (index.graph.node[node.position].op_type, kind.dtype)
        given, least = _FIXED.get(key), _LEAST.get(key, 0.0)
        for name in node.outputs:
            if given is not None:
                fixed[name] = fixed_scale(*given, kind)
            elif float(scales[name].scale) < least:
                fixed[name] = _widened(scales[name], least)
    return fixed


def _widened(scale: Scale, least: float) -> Scale:
    """Return a scale with the same least real number, and a greater highest number."""
    zero_point = scale.kind.lowest + round(-scale.lowest_real / least)
    return fixed_scale(least, zero_point, scale.kind)


def _cover(scales: list[Scale], kind: IntegerType) -> Scale:
    """Return a scale that covers the ranges of several scales."""
    if kind.symmetric:
        return max(scales, key=lambda scale: float(scale.scale))
    return scale_of_range(
        min(scale.lowest_real for scale in scales),
        max(scale.highest_real for scale in scales),
        kind,
    )


def _assign_weights(plan: Plan, scales: Assignment, cache: ScaleCache) -> dict[WeightUse, Scale]:
    weights: dict[WeightUse, Scale] = {}
    fused = _fused_scales(cache.index, plan, scales) if cache.settings.fixed_scales else {}
    for node in plan.nodes:
        if node.weight is None:
            continue
        use = node.weight[1]
        if use not in weights:
            kind = weight_type(cache.settings, is_per_channel=use.axis is not None)
            weights[use] = cache.of_weight(use, kind)
        if node.bias is not None:
            data = scales.of(node, node.activations[0][1])
            weights[use] = widen_for_bias(weights[use], data, cache.floats(node.bias[1]))
        for name in fused.keys() & set(node.outputs):
            data = scales.of(node, node.activations[0][1])
            weights[use] = off_powers_of_two(weights[use], data, fused[name])
    return weights


def _fused_scales(index: GraphIndex, plan: Plan, scales: Assignment) -> dict[str, Scale]:
    """Return the required scale of tensors by any entry of `_OFF_POWERS_OF_TWO`."""
    return {
        node.activations[0][1]: scale
        for node in plan.nodes
        for scale in (scales.of(node, name) for name in node.outputs)
        if (index.graph.node[node.position].op_type, scale.kind.dtype) in _OFF_POWERS_OF_TWO
    }
