"""Plan of 16-bit nodes and tensors: capable nodes, fitting values, and dependent tensors.

Operators that only move data keep the type of their input, so that no conversion surrounds them. A
Cast from floats reads either type. Everything else is a choice, node by node.

Inputs and outputs of operators that may be 16-bit floats, by ONNX Runtime's schemas.
"""

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx
from onnxruntime.capi import onnxruntime_pybind11_state as _runtime

from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, subgraphs
from edgepack.packager.profiles.pass_settings import LARGEST_FLOAT16
from edgepack.packager.tensors.observations import Observation
from edgepack.tasks.arrays import Singles

_MOST_WHOLE_NUMBER = 2048.0
"""16-bit floats hold every whole number up to this."""

_LEAST_NORMAL = 2.0**-14
"""Below this, 16-bit floats lose a digit with every halving."""

_MOST_CHANGE = 0.1
"""Relative change of a single constant: what is beyond it (1e-12 becomes 0) guards nothing."""


class Float16Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a candidate's 16-bit parts.

    Attributes:
        nodes: Positions of nodes, with the input positions that become 16-bit.
        tensors: Names of tensors that are computed in 16 bits.
    """

    nodes: dict[int, frozenset[int]] = msgspec.field(default_factory=dict)
    tensors: set[str] = msgspec.field(default_factory=set)


@dataclass
class Float16Planner:
    """Finds possible 16-bit parts of a model.

    Attributes:
        index: The model's graph, indexed.
        opsets: Version of each operator set, by domain.
        exclude_ops: Operator types that stay 32-bit.
        activation_max: Greatest magnitude of an activation.
    """

    index: GraphIndex
    opsets: Mapping[str, int]
    exclude_ops: Collection[str]
    activation_max: float

    def __post_init__(self) -> None:
        nodes = enumerate(self.index.graph.node)
        self._open = {position: halvable(node, self.opsets) for position, node in nodes}
        self._constant_fits: dict[str, bool] = {}

    def observable(self) -> list[str]:
        """Return tensors with bounds that decide: floats that some operator could take or give in
        16 bits.
        """
        names = dict.fromkeys(
            name
            for position, node in enumerate(self.index.graph.node)
            if self._is_open(position)
            for name in (*self._inputs(position), *self._outputs(position))
            if not facts(node.op_type).one_scale
        )
        return [name for name in names if name not in self.index.initializers]

    def choices(self, observed: Mapping[str, Observation]) -> Iterator[str]:
        """Return the names of the nodes that can be 16-bit, in graph order, without nodes that only
        follow others.
        """
        for position, node in enumerate(self.index.graph.node):
            if (
                not facts(node.op_type).one_scale
                and node.op_type != "Cast"
                and self._is_open(position)
                and self._fits(position, observed)
            ):
                yield node.name

    def plan(self, chosen: Collection[str], observed: Mapping[str, Observation]) -> Float16Plan:
        """Return the plan for these 16-bit nodes.

        Args:
            chosen: Names of nodes, from `choices`.
            observed: Bounds of the tensors of `observable`.
        """
        names = set(chosen)
        plan = Float16Plan()
        for position, node in enumerate(self.index.graph.node):
            if node.op_type == "Cast":
                is_float16 = self._is_whole_number(node, observed)
            elif facts(node.op_type).one_scale:
                is_float16 = self._follows(position, plan.tensors)
            else:
                is_float16 = node.name in names
            if is_float16:
                inputs, outputs = self._open[position]
                plan.nodes[position] = frozenset(
                    i for i in inputs if self.index.is_float(node.input[i])
                )
                plan.tensors.update(
                    node.output[i] for i in outputs if self.index.is_float(node.output[i])
                )
        return plan

    def _is_open(self, position: int) -> bool:
        """Return True if a node has a 16-bit form, as far as its operator and the known types
        go.
        """
        node = self.index.graph.node[position]
        names = [name for name in (*node.input, *node.output) if name]
        return (
            facts(node.op_type).has_float16_form
            and node.op_type not in self.exclude_ops
            and not any(True for _ in subgraphs(node))
            and all(name in self.index.types for name in names)
            and bool(self._outputs(position))
        )

    def _inputs(self, position: int) -> list[str]:
        node = self.index.graph.node[position]
        positions = sorted(self._open[position][0])
        return [node.input[i] for i in positions if self.index.is_float(node.input[i])]

    def _outputs(self, position: int) -> list[str]:
        node = self.index.graph.node[position]
        positions = sorted(self._open[position][1])
        return [node.output[i] for i in positions if self.index.is_float(node.output[i])]

    def _fits(self, position: int, observed: Mapping[str, Observation]) -> bool:
        for name in (*self._inputs(position), *self._outputs(position)):
            if name in self.index.initializers:
                if not self._does_constant_fit(name):
                    return False
            elif not activation_fits(observed[name].low, observed[name].high, self.activation_max):
                return False
        return True

    def _does_constant_fit(self, name: str) -> bool:
        if name not in self._constant_fits:
            values = np.asarray(self.index.constant(name), dtype=np.float32)
            self._constant_fits[name] = constant_fits(values)
        return self._constant_fits[name]

    def _follows(self, position: int, half: Collection[str]) -> bool:
        """Return True if an operator that moves data gets 16 bits, and so gives 16 bits."""
        if not self._is_open(position):
            return False
        first, *others = self._inputs(position) or [""]
        constants = [name for name in (first, *others) if name in self.index.initializers]
        is_float16 = first in half or first in self.index.initializers
        return is_float16 and all(self._does_constant_fit(name) for name in constants)

    def _is_whole_number(self, node: onnx.NodeProto, observed: Mapping[str, Observation]) -> bool:
        """Return True if a Cast gives floats from whole numbers that 16 bits hold."""
        name = node.output[0]
        if self.index.is_float(node.input[0]) or name not in observed:
            return False
        return max(abs(observed[name].low), abs(observed[name].high)) <= _MOST_WHOLE_NUMBER


def activation_fits(low: float, high: float, largest: float) -> bool:
    """Return True if a tensor with these bounds can be 16-bit.

    Args:
        low, high: Least and greatest value on the calibration samples.
        largest: Greatest magnitude allowed.
    """
    size = max(abs(low), abs(high))
    return size == 0.0 or _LEAST_NORMAL <= size <= largest


def constant_fits(values: Singles) -> bool:
    """Return True if a constant can be 16-bit; infinities can, and small weights among larger
    weights.
    """
    finite = np.abs(values[np.isfinite(values)])
    if not finite.size or not finite.any():
        return True
    if finite.max() > LARGEST_FLOAT16:
        return False
    if finite.size > 1:
        return bool(finite.max() >= _LEAST_NORMAL)
    change = np.abs(finite.astype(np.float16).astype(np.float32) - finite)
    return bool((change <= _MOST_CHANGE * finite).all())


_HALF = "tensor(float16)"


@functools.cache
def _schemas() -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """Return every operator that ONNX Runtime knows, its versions in order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in _runtime.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return {
        key: tuple(sorted(versions, key=lambda schema: int(schema.since_version)))
        for key, versions in found.items()
    }


def halvable(node: onnx.NodeProto, opsets: Mapping[str, int]) -> tuple[set[int], set[int]]:
    """Return positions of inputs and outputs with a type that may be float16 in place of float.

    Args:
        node: The node.
        opsets: Version of each operator set, by domain; the standard domain is "".

    Returns:
        Input positions, output positions; empty for an operator that ONNX Runtime does not know.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = [
        schema
        for schema in _schemas().get((domain, node.op_type), ())
        if schema.since_version <= opsets.get(domain, 1)
    ]
    if not known:
        return set(), set()
    schema = known[-1]
    free = {
        constraint.type_param_str
        for constraint in schema.type_constraints
        if _HALF in constraint.allowed_type_strs
    }
    return (
        set(_positions(schema.inputs, len(node.input), free)),
        set(_positions(schema.outputs, len(node.output), free)),
    )


def _positions(formal: Any, count: int, free: set[str]) -> Iterator[int]:
    """Yield positions of float16 parameters; the last formal parameter stands for all further."""
    for position in range(count):
        if formal and formal[min(position, len(formal) - 1)].typeStr in free:
            yield position
