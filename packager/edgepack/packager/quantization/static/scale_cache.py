"""Scales of single tensors, each chosen once: a search makes dozens of plans of the same tensors,
and `mse` looks at a histogram 138 times.
"""

import numpy as np
import numpy.typing as npt

from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.calibration_methods import choose_scale
from edgepack.packager.quantization.static.plan import WeightUse
from edgepack.packager.quantization.static.scales import IntegerType, Scale, scale_of_weights
from edgepack.packager.tensors.observations import NOTHING_SEEN, Observation


class ScaleCache:
    """Chooses scales, and remembers them.

    Args:
        index: The float graph, whose constants must not change.
        settings: The profile's quantize pass.
    """

    def __init__(self, index: GraphIndex, settings: Quantize) -> None:
        self._index = index
        self._weight_ranges = settings.weight_ranges
        self._activations: dict[tuple[str, str, IntegerType], Scale] = {}
        self._weights: dict[tuple[WeightUse, IntegerType], Scale] = {}

    def of_activation(
        self, name: str, method: str, observed: Observation | None, kind: IntegerType
    ) -> Scale:
        """The scale of an activation, or of a constant that is used as one.

        Args:
            name: The tensor.
            method: The calibration method.
            observed: What calibration saw of it with that method; None for a constant.
            kind: The integer type.
        """
        key = (name, method, kind)
        if key not in self._activations:
            seen = observed or self._observe_constant(name)
            self._activations[key] = choose_scale(method, seen, kind)
        return self._activations[key]

    def of_weight(self, use: WeightUse, kind: IntegerType) -> Scale:
        """The scale of a weight, from its values."""
        key = (use, kind)
        if key not in self._weights:
            self._weights[key] = scale_of_weights(
                self.floats(use.name), use.axis, kind, self._weight_ranges
            )
        return self._weights[key]

    def floats(self, name: str) -> npt.NDArray[np.floating]:
        """A constant, float32.

        Raises:
            KeyError: It is none.
        """
        return self._index.values(name).astype(np.float32)

    def _observe_constant(self, name: str) -> Observation:
        values = self._index.constant(name)
        if values is None:
            raise KeyError(f"tensor {name} was not calibrated")
        if not values.size:
            return NOTHING_SEEN
        return Observation(low=float(np.min(values)), high=float(np.max(values)))
