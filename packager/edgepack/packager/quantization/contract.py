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
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples


class CandidateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a candidate.

    Attributes:
        method: How it is made.
        float_nodes: Nodes that stay float.
        high_precision_nodes: Nodes that get more bits than the others; what is among the float ones
            too is float.
    """

    method: QuantizationMethod
    float_nodes: tuple[str, ...] = ()
    high_precision_nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The same for the same candidate, whatever the order of the nodes; journals keep it."""
        nodes = (sorted(self.float_nodes), sorted(self.high_precision_nodes))
        return msgspec.json.encode([self.method.id, *nodes]).decode()


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a candidate.

    Attributes:
        model: The float model; None where it is the one that the maker was given, and another where
            that was prepared for the method, which scales some tensors.
        observed: What calibration saw of its tensors; empty where nothing was calibrated.
    """

    model: onnx.ModelProto | None = None
    observed: Mapping[str, Observation] = msgspec.field(default_factory=dict)


class BuiltCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in memory.

    Attributes:
        model: The lowered model.
        lowered: Names of the nodes that are lowered in it.
        notes: What a person should know of how it was made, if it is the one that is kept.
        origin: What it was made from, for a look at its layers.
    """

    model: onnx.ModelProto
    lowered: tuple[str, ...]
    notes: tuple[str, ...] = ()
    origin: Origin = Origin()


class NodeSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """Sensitivity of a node: cost and savings of lowering it alone.

    Attributes:
        name: The node.
        noise: Mean over the outputs of the root-mean-square error over the root-mean-square.
        weight_bytes: Bytes of its float weights, which lowering makes fewer.
        macs: Its multiply-accumulates, which lowering makes cheaper; 0 where it does not, or where
            they cannot be counted.
    """

    name: str
    noise: float
    weight_bytes: int = 0
    macs: int = 0


class HighPrecision(msgspec.Struct, frozen=True, kw_only=True):
    """High precision that a maker can give nodes instead of float: more bits.

    Activations get 16 in place of 8 while weights stay as they are, or weights 8 in place of 4.

    Attributes:
        words: What such a node is, in words for people: "16-bit".
        names: The nodes that can get it by themselves, in graph order.
    """

    words: str
    names: tuple[str, ...]


Measured = MutableMapping[str, float] | None
"""What a ranking measured, by nodes and samples: one that was ended goes on from there."""

Ranked = tuple[NodeSensitivity, ...]
"""One entry a node, worst first; equal ones by name."""

_Settings = TypeVar("_Settings")


class CandidateMaker(abc.ABC):
    """Makes candidates of one float model.

    Attributes:
        verb: What it does to nodes, in words for people: "quantized", "converted".
        methods: Methods in the order to try.
        costly_methods: Further ones, which take much longer; for where the others are not enough.
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
        """Make one candidate.

        Args:
            spec: With one of `methods` or `costly_methods`, float nodes of `names`, and high
                precision for nodes of `high_precision.names`.
        """

    @abc.abstractmethod
    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Measure what lowering each node alone costs.

        Args:
            spec: The method, and the nodes that get more bits when they are lowered; no float ones.
            samples: Samples to measure on; as many are read as the cost allows.
            progress: Called for each node.
            measured: What the same ranking measured before it was ended; added to.
        """


@dataclass
class PassCandidateMaker(CandidateMaker, Generic[_Settings]):
    """Makes what one lowering pass of a profile asks for of one float model.

    Attributes:
        model: The float model, clean and with shapes.
        settings: The profile's pass.
        samples: Calibration samples.
        work_dir: Folder for what it writes.
        progress: Called for calibration.
    """

    model: onnx.ModelProto
    settings: _Settings
    samples: Samples
    work_dir: Path
    progress: Progress

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Find out which nodes can be lowered, and by what methods."""

    def _lowered(self, spec: CandidateSpec) -> tuple[str, ...]:
        kept = set(spec.float_nodes)
        return tuple(name for name in self.names if name not in kept)
