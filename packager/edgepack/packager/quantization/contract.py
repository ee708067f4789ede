"""What the search needs of a lowering: candidates by method and by nodes that are spared.

The search knows nothing of integers, halves or blocks of weights; whoever lowers a model does.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import msgspec
import onnx

from edgepack.packager.progress import Progress
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate was made from.

    Attributes:
        model: The float model; None where it is the one that the maker was given, and another
            where that was prepared for the method, which scales some tensors.
        observed: What calibration saw of its tensors; empty where nothing was calibrated.
    """

    model: onnx.ModelProto | None = None
    observed: Mapping[str, Observation] = msgspec.field(default_factory=dict)


class Built(msgspec.Struct, frozen=True, kw_only=True):
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


class NodeCost(msgspec.Struct, frozen=True, kw_only=True):
    """What lowering one node alone costs, and what it is good for.

    Attributes:
        name: The node.
        noise: Mean over the outputs of the root-mean-square error over the root-mean-square.
        weight_bytes: Bytes of its float weights, which lowering makes fewer.
        macs: Its multiply-accumulates, which lowering makes cheaper; 0 where it does not, or
            where they cannot be counted.
    """

    name: str
    noise: float
    weight_bytes: int = 0
    macs: int = 0


class Raising(msgspec.Struct, frozen=True, kw_only=True):
    """How a maker gives nodes more bits than the others have, in place of float.

    Activations get 16 in place of 8 while weights stay as they are, or weights 8 in place of 4.

    Attributes:
        word: What a raised node is, as people are told: "16-bit".
        names: The nodes that can be raised by themselves, in graph order.
        build: Makes a candidate of a method, the nodes that stay float, and those that are raised.
        rank: As `CandidateMaker.rank`, with all of `names` raised: what is to blame for what is
            lost even so.
    """

    word: str
    names: tuple[str, ...]
    build: Callable[[str, Collection[str], Collection[str]], Built]
    rank: Callable[[str, Samples, Progress], tuple[NodeCost, ...]]


class CandidateMaker(Protocol):
    """Makes candidates of one float model."""

    @property
    def verb(self) -> str:
        """What it does to nodes, as people are told: "quantized", "converted"."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Ways to make a candidate, in the order to try; words that people are shown."""

    @property
    def costly_methods(self) -> tuple[str, ...]:
        """Further ways, which take much longer to make; for where the others are not enough."""

    @property
    def raising(self) -> Raising | None:
        """How nodes get more bits, where that is to be tried before any stays float."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every node that can be lowered, in graph order."""

    def build(self, method: str, float_nodes: Collection[str]) -> Built:
        """Makes one candidate.

        Args:
            method: One of `methods` or `costly_methods`.
            float_nodes: Nodes of `names` that stay float.
        """

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """Measures what lowering each node alone costs.

        Args:
            method: One of `methods` or `costly_methods`.
            samples: Samples to measure on; as many are read as the cost allows.
            progress: Told about each node.

        Returns:
            One entry a node, worst first; equal ones by name.
        """
