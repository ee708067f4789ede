"""Calibration methods: the range and the scale of a tensor from the values that were observed.

No method wins everywhere (a text recognizer kept .80 with minmax, .93 with percentile 99.99 and .24
with 99.9), so a profile names several and the search tries all; `profiles.calibration_methods`
defines each name.
"""

import numpy as np
import numpy.typing as npt

from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.profiles.calibration_methods import (
    POWER_OF_TWO_METHODS,
    percentile_of,
)
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.plan import WeightUse
from edgepack.packager.quantization.static.scales import (
    FloatArray,
    IntegerType,
    Scale,
    fixed_scale,
    scale_of_range,
    scale_of_weights,
    scales_of_ranges,
)
from edgepack.packager.tensors.observations import NOTHING_SEEN, Histogram, Observation
from edgepack.tasks.arrays import Floats

_SHRINKS = np.linspace(1.0, 0.1, 46)
_EXPONENTS_TRIED = 6
_ENTROPY_LEVELS = 128
_ENTROPY_STRIDE = 16


def choose_range(method: str, observed: Observation, kind: IntegerType) -> tuple[float, float]:
    """Return the range of a tensor.

    Args:
        method: See `is_known_method`.
        observed: Observation of the tensor at calibration.
        kind: The integer type that the range is for.

    Returns:
        Least and greatest real number to be covered.
    """
    method = POWER_OF_TWO_METHODS.get(method, method)
    low, high = observed.low, observed.high
    if method == "minmax" or observed.counts is None or not observed.counts.any():
        return low, high
    percentile = percentile_of(method)
    if percentile is not None:
        return _percentile_range(observed, percentile)
    if method == "entropy":
        bound = _entropy_bound(observed)
        return max(low, -bound), min(high, bound)
    return _mse_range(observed, kind)


def choose_scale(method: str, observed: Observation, kind: IntegerType) -> Scale:
    """Return the scale of a tensor; for powers of two, `mse` picks among exponents directly."""
    method = POWER_OF_TWO_METHODS.get(method, method)
    if not (kind.power_of_two and method == "mse" and observed.counts is not None):
        return scale_of_range(*choose_range(method, observed, kind), kind)
    widest = scale_of_range(observed.low, observed.high, kind)
    zero_point = int(widest.zero_point)
    factors = float(widest.scale) * 2.0 ** -np.arange(_EXPONENTS_TRIED)
    errors = _squared_errors(observed.histogram(), factors, np.full_like(factors, zero_point), kind)
    return fixed_scale(float(factors[np.argmin(errors)]), zero_point, kind)


def _percentile_range(observed: Observation, percentile: float) -> tuple[float, float]:
    counts, centers = observed.histogram()
    share = np.cumsum(counts) / counts.sum()
    tail = (100.0 - percentile) / 200.0
    width = (observed.high - observed.low) / len(counts)
    low = centers[int(np.searchsorted(share, tail))] - width / 2
    high = centers[min(int(np.searchsorted(share, 1.0 - tail)), len(counts) - 1)] + width / 2
    return max(float(low), observed.low), min(float(high), observed.high)


def _mse_range(observed: Observation, kind: IntegerType) -> tuple[float, float]:
    """Return the range of least squared error: both ends together, then each end alone."""
    low, high = observed.low, observed.high
    histogram = observed.histogram()

    def best(lows: Floats, highs: Floats) -> int:
        factors, zero_points = scales_of_ranges(lows, highs, kind)
        stored = factors.astype(np.float32).astype(np.float64)
        return int(np.argmin(_squared_errors(histogram, stored, zero_points, kind)))

    both = _SHRINKS[best(low * _SHRINKS, high * _SHRINKS)]
    low, high = low * both, high * both
    if not kind.symmetric:
        low = low * _SHRINKS[best(low * _SHRINKS, np.full_like(_SHRINKS, high))]
        high = high * _SHRINKS[best(np.full_like(_SHRINKS, low), high * _SHRINKS)]
    return float(low), float(high)


def _squared_errors(
    histogram: Histogram,
    factors: FloatArray,
    zero_points: npt.NDArray[np.number],
    kind: IntegerType,
) -> FloatArray:
    """Return the squared error of each scale for a histogram's values, (scales,) float64."""
    counts, centers = histogram
    factors, zero_points = factors[:, np.newaxis], zero_points[:, np.newaxis]
    integers = np.clip(np.rint(centers / factors) + zero_points, kind.lowest, kind.highest)
    restored = (integers - zero_points) * factors
    return np.asarray(np.sum(counts * (restored - centers) ** 2, axis=1))


def _entropy_bound(observed: Observation) -> float:
    """Return the bound on magnitudes that loses the least information (Kullback-Leibler)."""
    counts, centers = observed.histogram()
    bound = max(-observed.low, observed.high)
    bins = len(counts)
    magnitudes = np.zeros(bins)
    positions = np.minimum((np.abs(centers) / bound * bins).astype(np.int64), bins - 1)
    np.add.at(magnitudes, positions, counts)
    best, best_bins = np.inf, bins
    for kept in range(_ENTROPY_LEVELS, bins + 1, _ENTROPY_STRIDE):
        reference = magnitudes[:kept].copy()
        reference[-1] += magnitudes[kept:].sum()
        divergence = _divergence(reference, _coarsen(magnitudes[:kept]))
        if divergence < best:
            best, best_bins = divergence, kept
    return float(bound * best_bins / bins)


def _coarsen(magnitudes: Floats) -> Floats:
    """Return a histogram expressed in `_ENTROPY_LEVELS` levels."""
    level = np.arange(len(magnitudes)) * _ENTROPY_LEVELS // len(magnitudes)
    occupied = magnitudes > 0
    total = np.bincount(level, weights=magnitudes, minlength=_ENTROPY_LEVELS)
    members = np.bincount(level, weights=occupied, minlength=_ENTROPY_LEVELS)
    mean = total / np.maximum(members, 1)
    return np.where(occupied, mean[level], 0.0)


def _divergence(p: Floats, q: Floats) -> float:
    if not p.sum() or not q.sum():
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    there = p > 0
    return float(np.sum(p[there] * np.log(p[there] / np.maximum(q[there], 1e-9))))


class ScaleCache:
    """Chooses scales, and stores the scales.

    A search makes dozens of plans of the same tensors, and `mse` looks at a histogram 138 times.

    Args:
        index: The float graph, with constants that must not change.
        settings: The profile's quantize pass.
    """

    def __init__(self, index: GraphIndex, settings: Quantize) -> None:
        self.index = index
        self.settings = settings
        self._activations: dict[tuple[str, str, IntegerType], Scale] = {}
        self._weights: dict[tuple[WeightUse, IntegerType], Scale] = {}

    def of_activation(
        self, name: str, method: str, observed: Observation | None, kind: IntegerType
    ) -> Scale:
        """Return the scale of an activation, or of a constant in the role of an activation.

        Args:
            name: The tensor.
            method: The calibration method.
            observed: Observation of the tensor with that method; None for a constant.
            kind: The integer type.
        """
        key = (name, method, kind)
        if key not in self._activations:
            seen = observed or self._observe_constant(name)
            self._activations[key] = choose_scale(method, seen, kind)
        return self._activations[key]

    def of_weight(self, use: WeightUse, kind: IntegerType) -> Scale:
        """Return the scale of a weight, from its values."""
        key = (use, kind)
        if key not in self._weights:
            self._weights[key] = scale_of_weights(
                self.floats(use.name), use.axis, kind, self.settings.weight_ranges
            )
        return self._weights[key]

    def floats(self, name: str) -> npt.NDArray[np.floating]:
        """Return a constant, float32.

        Raises:
            KeyError: The tensor is not a constant.
        """
        return self.index.values(name).astype(np.float32)

    def _observe_constant(self, name: str) -> Observation:
        values = self.index.constant(name)
        if values is None:
            raise KeyError(f"tensor {name} was not calibrated")
        if not values.size:
            return NOTHING_SEEN
        return Observation(low=float(np.min(values)), high=float(np.max(values)))
