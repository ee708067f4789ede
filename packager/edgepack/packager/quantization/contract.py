"""Contract between the search and lowering: candidates by method and by precision of nodes.

The search knows nothing of integers, 16-bit floats or blocks of weights; candidate makers do.
"""

import abc
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import onnx

from edgepack.packager.progress import Progress
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples

Measured = MutableMapping[str, float] | None
"""What a ranking measured, by nodes and samples: one that was ended goes on from there."""

_Settings = TypeVar("_Settings")


class QuantizationMethod(msgspec.Struct, frozen=True, kw_only=True):
    """Method of lowering a model's precision.

    Attributes:
        base: Conversion of floats into numbers of fewer bits: a calibration method (`minmax`), a
            rounding of weights (`hqq`), a type (`float16`), or an external quantizer
            (`quark-XINT8`).
        preparation: First change of the float model (`smooth`, `cross-layer`), or "".
        has_gptq_weights: Whether weights are rounded by GPTQ instead of to the nearest.
        has_corrected_biases: Whether biases make up for the mean error of each channel.
    """

    base: str
    preparation: str = ""
    has_gptq_weights: bool = False
    has_corrected_biases: bool = False

    @property
    def id(self) -> str:
        """The same in every release: `minmax`, `minmse+gptq`, `smooth+mse+bias-corrected`."""
        steps = (
            self.preparation,
            self.base,
            "gptq" if self.has_gptq_weights else "",
            "bias-corrected" if self.has_corrected_biases else "",
        )
        return "+".join(step for step in steps if step)

    @property
    def words(self) -> str:
        """For people: "cross-layer + mse, weights rounded by GPTQ"."""
        before = f"{self.preparation} + " if self.preparation else ""
        rounded = ", weights rounded by GPTQ" if self.has_gptq_weights else ""
        corrected = ", bias corrected" if self.has_corrected_biases else ""
        return f"{before}{self.base}{rounded}{corrected}"


class CandidateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a candidate.

    Attributes:
        method: Method of lowering.
        float_nodes: Nodes that stay float.
        high_precision_nodes: Nodes with more bits than the others; a node that is also a float node
            is float.
    """

    method: QuantizationMethod
    float_nodes: tuple[str, ...] = ()
    high_precision_nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Key, equal for equal candidates, for any order of the nodes; journals store the key."""
        nodes = (sorted(self.float_nodes), sorted(self.high_precision_nodes))
        return msgspec.json.encode([self.method.id, *nodes]).decode()


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a candidate.

    Attributes:
        model: The float model; None for the maker's own model; another model if the method prepared
            the model by scaling some tensors.
        observed: Observations of its tensors at calibration; empty without calibration.
    """

    model: onnx.ModelProto | None = None
    observed: Mapping[str, Observation] = msgspec.field(default_factory=dict)


class BuiltCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in memory.

    Attributes:
        model: The lowered model.
        lowered: Names of the lowered nodes.
        notes: Notes on the making for a person, if the candidate is kept.
        origin: Origin of the candidate, for the inspection of its layers.
    """

    model: onnx.ModelProto
    lowered: tuple[str, ...]
    notes: tuple[str, ...] = ()
    origin: Origin = Origin()


class NodeSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """Sensitivity of a node: cost and savings of lowering only this node.

    Attributes:
        name: The node.
        noise: Mean over the outputs of the root-mean-square error over the root-mean-square.
        weight_bytes: Bytes of its float weights, which lowering makes fewer.
        macs: Its multiply-accumulates, which lowering makes cheaper; 0 if lowering does not, or if
            unknown.
    """

    name: str
    noise: float
    weight_bytes: int = 0
    macs: int = 0


class HighPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """High precision that a maker can give nodes instead of float: more bits.

    Activations get 16 bits in place of 8 while weights stay unchanged, or weights 8 in place of 4.

    Attributes:
        words: Name of such a node for people: "16-bit".
        names: The nodes that can get high precision individually, in graph order.
    """

    words: str
    names: tuple[str, ...]


Ranked = tuple[NodeSensitivity, ...]
"""One entry a node, worst first; equal ones by name."""


class CandidateMaker(abc.ABC):
    """Makes candidates of a float model.

    Attributes:
        verb: Effect on nodes, for people: "quantized", "converted".
        methods: Methods in the order to try.
        costly_methods: Further methods, which take much longer; for cases in which the others are
            insufficient.
        high_precision: More bits for some nodes, where that is to be tried before any stays float.
        names: Every node that can be lowered, in graph order.
    """

    verb: str = "quantized"
    methods: tuple[QuantizationMethod, ...]
    costly_methods: tuple[QuantizationMethod, ...] = ()
    high_precision: HighPrecision | None = None
    names: tuple[str, ...]

    @abc.abstractmethod
    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Make a candidate.

        Args:
            spec: A method of `methods` or `costly_methods`, float nodes of `names`, and high
                precision for nodes of `high_precision.names`.
        """

    @abc.abstractmethod
    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Measure the cost of lowering each node alone.

        Args:
            spec: The method, and the nodes with more bits when lowered; no float nodes.
            samples: Samples to measure on; as many are read as the cost allows.
            progress: Called for each node.
            measured: Measurements of the same ranking before its end; extended.
        """


@dataclass
class PassCandidateMaker(CandidateMaker, Generic[_Settings]):
    """Makes candidates for a profile's lowering pass and a float model.

    Attributes:
        model: The float model, clean and with shapes.
        settings: The profile's pass.
        samples: Calibration samples.
        work_dir: Folder for written files.
        progress: Called for calibration.
    """

    model: onnx.ModelProto
    settings: _Settings
    samples: Samples
    work_dir: Path
    progress: Progress

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Find the nodes that can be lowered, and the methods."""

    def _lowered(self, spec: CandidateSpec) -> tuple[str, ...]:
        kept = set(spec.float_nodes)
        return tuple(name for name in self.names if name not in kept)
