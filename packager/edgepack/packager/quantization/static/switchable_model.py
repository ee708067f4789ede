"""Runs of a model with switched quantization, with only the parts that a subset of nodes needs.

To rank nodes, each is quantized alone, hundreds of times. All nodes before and next to the
quantized node then compute the same as the float model. So the model is cut into pieces, their
exchanged tensors of float inferences are kept, and a piece with the float model's inputs and
without quantized nodes does not run again. The outputs are the same, bit for bit.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx
import onnxruntime

from edgepack.packager.graph.held_weights import WeightsFile, save_for_session
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.graph.pieces import cut
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.plan import Plan
from edgepack.packager.quantization.static.switchable_quantizers import (
    SWITCHES,
    SwitchableGraph,
    SwitchWriter,
)
from edgepack.packager.tensors.sequence import Feeds, digest_of
from edgepack.tasks.arrays import Bools, Outputs, Tensor

_MOST_PIECES = 8
"""With 8 of equal cost 9/16 of a model run on average; each has threads and memory of its own."""

_FEWEST_NODES = 4
"""Switched nodes of a piece: below, a model is too small for it to be worth several sessions."""

_MOST_KEPT_RUNS = 4
"""Float inferences of which it is kept what pieces exchange, the last ones: nodes are measured on
no more samples at a time (`ranking`)."""

_MOST_KEPT_BYTES = 128_000_000
"""What they may hold together."""


class SwitchableModel:
    """A model with a vector of switches for its nodes' quantization.

    Args:
        model: The float model.
        index: Its graph, indexed.
        plan: The quantized parts.
        scales: With which scales.
        path: Where the model is written; its folder must exist.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        index: GraphIndex,
        plan: Plan,
        scales: Assignment,
        path: Path,
    ) -> None:
        self.names = tuple(node.name for node in plan.nodes)
        with WeightsFile(path.with_suffix(".weights")) as rounded:
            switchable = SwitchWriter(model, index, plan, scales, rounded).write()
        self._pieces = _open(switchable, index, path)
        self._outputs = [value.name for value in switchable.model.graph.output]
        self._kept = _KeptRuns()

    def run(self, feeds: Feeds, quantized: Bools) -> Outputs:
        """Run an inference with a subset of nodes quantized.

        Args:
            feeds: The sample.
            quantized: bool (nodes,), in the order of `names`.
        """
        key = digest_of(feeds)
        kept = self._kept.of(key)
        values: dict[str, Tensor] = {**feeds, SWITCHES: quantized}
        differs: set[str] = set()
        for piece in self._pieces:
            is_float = not quantized[piece.switches].any() and differs.isdisjoint(piece.inputs)
            if kept is not None and is_float:
                values |= {name: kept[name] for name in piece.outputs}
            else:
                values |= piece.run(values)
                differs.update(() if is_float else piece.outputs)
        if not quantized.any():
            self._kept.keep(key, {name: values[name] for p in self._pieces for name in p.outputs})
        return {name: values[name] for name in self._outputs}


class _OpenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece, ready to run.

    Attributes:
        session: Session of the piece.
        switches: Numbers of its switches.
        inputs, outputs: Names of its inputs and outputs, without `SWITCHES`.
    """

    session: onnxruntime.InferenceSession
    switches: list[int]
    inputs: frozenset[str]
    outputs: tuple[str, ...]

    def run(self, values: dict[str, Tensor]) -> Outputs:
        """Return its outputs."""
        used = {entry.name: values[entry.name] for entry in self.session.get_inputs()}
        made = self.session.run(self.outputs, used)
        return dict(zip(self.outputs, made, strict=True))


class _KeptRuns:
    """Cache of tensors between pieces in the last float inferences, limited by memory."""

    def __init__(self) -> None:
        self._runs: dict[bytes, dict[str, Tensor]] = {}

    def of(self, key: bytes) -> dict[str, Tensor] | None:
        return self._runs.get(key)

    def keep(self, key: bytes, values: dict[str, Tensor]) -> None:
        self._runs.pop(key, None)
        self._runs[key] = values
        while len(self._runs) > _MOST_KEPT_RUNS or self._size_bytes() > _MOST_KEPT_BYTES:
            del self._runs[next(iter(self._runs))]

    def _size_bytes(self) -> int:
        return sum(value.nbytes for values in self._runs.values() for value in values.values())


def _open(switchable: SwitchableGraph, index: GraphIndex, path: Path) -> list[_OpenPiece]:
    """Return pieces with as many switched nodes each, as far as that is possible."""
    switches = switchable.switches
    count = min(_MOST_PIECES, max(1, len(switches) // _FEWEST_NODES))
    firsts = [switches[number * len(switches) // count][0] for number in range(1, count)]
    starts = (0, *firsts)
    pieces = cut(switchable.model, starts, index.types)
    bounds = [*starts[: len(pieces)], len(switchable.model.graph.node)]
    opened = []
    for number, piece in enumerate(pieces):
        file = path if len(pieces) == 1 else path.with_stem(f"{path.stem}-{number}")
        save_for_session(piece.model, file)
        opened.append(
            _OpenPiece(
                session=open_on_cpu(file, optimize=False),
                switches=_switches_between(switches, bounds[number], bounds[number + 1]),
                inputs=frozenset(piece.inputs) - {SWITCHES},
                outputs=piece.outputs,
            )
        )
    return opened


def _switches_between(switches: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    return [number for position, number in switches if start <= position < end]
