"""Node of a workaround, and its replacement."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.tasks.arrays import Floats, Tensor

_IR_VERSION = 8


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A node, its graph, and the replacing nodes: none if the node stays.

    Attributes:
        node: The node; not changed.
        index: The graph before any replacement. Declared tensors are added.
        opsets: Version of each domain.
        folder: Folder for models of a single node.
        made: The replacing nodes, in order.
    """

    node: onnx.NodeProto
    index: GraphIndex
    opsets: Mapping[str, int]
    folder: Path
    made: list[onnx.NodeProto] = msgspec.field(default_factory=list)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The node's, by name; words are bytes."""
        return {entry.name: helper.get_attribute_value(entry) for entry in self.node.attribute}

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None where an axis is open or nothing is known."""
        shape = self.index.shapes.get(name, (None,))
        known = tuple(size for size in shape if size is not None)
        return known if len(known) == len(shape) else None

    def type_of(self, name: str) -> int:
        """Return a tensor's type.

        Raises:
            BuildError: The type is unknown.
        """
        element_type = self.index.types.get(name)
        if element_type is None:
            raise BuildError(
                f"the type of '{name}' is not known",
                found_in=f"pass apply_workarounds, node {self.node.name}",
                remedy="put the pass after infer_shapes",
            )
        return element_type

    def constant(self, word: str, values: npt.ArrayLike) -> str:
        """Return a constant of the node's own; whole numbers are int64."""
        return self.shared(f"{self.node.name}/{word}", values)

    def shared(self, name: str, values: npt.ArrayLike) -> str:
        """Return a constant that several nodes may read; made once."""
        if name not in self.index.initializers:
            tensor = numpy_helper.from_array(np.asarray(values), name)
            self.index.initializers[name] = tensor
            self.index.graph.initializer.append(tensor)
        return name

    def one(self, name: str) -> str:
        """Return a constant 1 of the type that a tensor has."""
        element_type = self.type_of(name)
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        return self.shared(f"edgepack/one/{element_type}", np.ones((), dtype))

    def put(
        self,
        op_type: str,
        inputs: Sequence[str],
        word: str,
        *,
        shape: Sequence[int | None] | None = None,
        output: str = "",
        **attributes: Any,
    ) -> str:
        """Add a replacing node, and return its output tensor.

        Args:
            op_type: Its operator.
            inputs: Inputs of the node.
            word: Part of the name of the node and its output, after the replaced node's name.
            shape: Shape of the output, which has the type of the first input. None if the output is
                the replaced node's output.
            output: Another name for the output.
            attributes: Of its operator.
        """
        name = f"{self.node.name}/{word}"
        made = output or name if shape is not None else self.node.output[0]
        node = helper.make_node(op_type, inputs, [made], name=name, **attributes)
        return self._add(node, shape)

    def put_changed(
        self,
        *,
        op_type: str = "",
        inputs: Sequence[str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        word: str = "",
        shape: Sequence[int | None] | None = None,
    ) -> str:
        """Put the node itself there again, changed; arguments as of `put` and `changed`."""
        node = self.changed(inputs, attributes)
        node.op_type = op_type or node.op_type
        if shape is not None:
            node.output[:] = [f"{node.name}/{word}"]
        return self._add(node, shape)

    def changed(
        self, inputs: Sequence[str] | None = None, attributes: Mapping[str, Any] | None = None
    ) -> onnx.NodeProto:
        """Return a copy of the node.

        Args:
            inputs: New inputs; None keeps the inputs.
            attributes: Changed attributes; None as a value removes an attribute.
        """
        node, new = deepcopy(self.node), attributes or {}
        node.input[:] = self.node.input if inputs is None else inputs
        refill(node.attribute, (entry for entry in node.attribute if entry.name not in new))
        given = ((name, value) for name, value in new.items() if value is not None)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in given)
        return node

    def run(self, node: onnx.NodeProto, feeds: Mapping[str, Tensor]) -> Floats:
        """Run a single node in ONNX Runtime.

        Args:
            node: The node; its first output is returned.
            feeds: A tensor for every input of the node.
        """
        (first, *_) = feeds.values()
        inputs = [_describe(name, value.dtype) for name, value in feeds.items()]
        output = _describe(node.output[0], first.dtype)
        graph = helper.make_graph([node], "alone", inputs, [output])
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
        self.folder.mkdir(parents=True, exist_ok=True)
        outputs = ModelRunner(model, self.folder / "alone.onnx").run(dict(feeds))
        return outputs[node.output[0]].astype(np.float64)

    def _add(self, node: onnx.NodeProto, shape: Sequence[int | None] | None) -> str:
        made = str(node.output[0])
        if shape is not None:
            element_type = self.type_of(node.input[0])
            self.index.types[made] = element_type
            value = helper.make_tensor_value_info(made, element_type, shape)
            self.index.graph.value_info.append(value)
        self.made.append(node)
        return made


def _describe(name: str, dtype: np.dtype[np.generic]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None)
