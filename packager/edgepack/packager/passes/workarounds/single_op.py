"""Operators that Qualcomm's HTP simulator computes wrongly by themselves, and what is right.

What is known of it (onnxruntime-qnn 2.7.0), and not of chips:

- A 16-bit Reciprocal gives about a fifth of what it is: 5.4 … 94.6 became 1.0 … 17.1 in a model's
  layer normalization, and the output was 128 % off. The same quotient as 1 / x is right to 0.03 %.
- A Pow whose base is a constant that has to be repeated, as in 2 ** x, is right in the first value
  of each repetition and 0 in the others. Exp(x * log 2) is right to 0.01 %.
- An 8-bit CumSum along another axis than the last adds up zero points too.
- A Gather of 32 rows or more from a 16-bit table whose rows hold 4, 8 or 16 values gives another
  row where the last one is asked for, by indices that the graph computes (its inputs are right).
- A Pad of int8 values that names no constant is filled with another value than 0: where zero stood
  for the lowest integer, -128, with the highest.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.passes.workarounds.constants import one_of

_WIDEST_ROW = 16
"""Values in the rows of a table of which the last was seen to be read wrongly."""


def divide(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Makes a quotient of each Reciprocal; returns of how many."""
    found = [node for node in graph.node if node.op_type == "Reciprocal" and not node.domain]
    for node in found:
        element_type = type_of(index, node, node.input[0])
        node.op_type = "Div"
        node.input.insert(0, one_of(graph, element_type))
    return len(found)


def raise_e(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Makes Exp(x * log base) of each power of a constant base that is repeated; returns how many.

    Repeated is a base whose shape is not the whole output's.
    """
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        base = index.constant(node.input[0]) if node.op_type == "Pow" else None
        shape = index.shapes.get(node.output[0])
        if base is None or shape in (None, base.shape) or not index.is_float(node.input[1]):
            continue
        values = base.astype(np.float64)
        if not (values > 0).all():
            continue
        constant, product = f"{node.name}/log", f"{node.name}/product"
        logarithm = np.log(values).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(logarithm, constant))
        graph.value_info.append(
            helper.make_tensor_value_info(product, onnx.TensorProto.FLOAT, shape)
        )
        gone.add(node.name)
        for made in (
            helper.make_node("Mul", [node.input[1], constant], [product], name=product),
            helper.make_node("Exp", [product], list(node.output), name=f"{node.name}/exp"),
        ):
            new.append((node.name, made))
    replace(graph, gone, new)
    return len(gone)


def sum_last(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Turns the axis of each CumSum to the end and back; returns of how many."""
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        given = index.constant(node.input[1]) if node.op_type == "CumSum" else None
        if given is None or not index.is_float(node.input[0]):
            continue
        shape = index.shapes.get(node.input[0])
        if not shape:
            continue
        axis, last = int(given.item()) % len(shape), len(shape) - 1
        if axis == last:
            continue
        turned, summed, constant = (f"{node.name}/{word}" for word in ("turned", "summed", "axis"))
        swap = list(range(len(shape)))
        swap[axis], swap[last] = last, axis
        graph.initializer.append(numpy_helper.from_array(np.array(last), constant))
        for name in (turned, summed):
            sizes = [shape[place] for place in swap]
            value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)
            graph.value_info.append(value)
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.input[:] = [turned, constant]
        inner.output[:] = [summed]
        gone.add(node.name)
        for made in (
            helper.make_node("Transpose", [node.input[0]], [turned], name=turned, perm=swap),
            inner,
            helper.make_node("Transpose", [summed], list(node.output), name=summed, perm=swap),
        ):
            new.append((node.name, made))
    replace(graph, gone, new)
    return len(gone)


def lengthen_tables(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Writes narrow tables that computed indices read twice, end to end; returns of how many nodes.

    So the last row is one that nothing asks for, and an index from the end finds what it found.
    """
    longer: dict[str, str] = {}
    count = 0
    for node in graph.node:
        if node.op_type != "Gather" or node.domain or index.producers.get(node.input[1]) is None:
            continue
        name = node.input[0]
        table = index.constant(name)
        axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 0)
        if table is None or not index.is_float(name) or axis % max(table.ndim, 1) != 0:
            continue
        if not table.size or table[0].size > _WIDEST_ROW:
            continue
        if name not in longer:
            longer[name] = f"{name}/longer"
            twice = np.concatenate([table, table])
            graph.initializer.append(numpy_helper.from_array(twice, longer[name]))
        node.input[0] = longer[name]
        count += 1
    if count:
        replace(graph, (), ())  # tables that nothing reads any more go
    return count


def name_zeros(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Writes the 0 that a Pad of floats leaves out into each; returns into how many."""
    zero = "edgepack/zero"
    count = 0
    for node in graph.node:
        if node.op_type != "Pad" or node.domain or not index.is_float(node.input[0]):
            continue
        mode = next((entry.s for entry in node.attribute if entry.name == "mode"), b"constant")
        if mode != b"constant" or (len(node.input) > 2 and node.input[2]):
            continue
        node.input[2:3] = [zero]
        count += 1
    if count and zero not in index.initializers:
        graph.initializer.append(numpy_helper.from_array(np.array(0.0, np.float32), zero))
    return count


def type_of(index: GraphIndex, node: onnx.NodeProto, name: str) -> int:
    """The type of a tensor that a node reads.

    Raises:
        BuildError: It is not known.
    """
    element_type = index.types.get(name)
    if element_type is None:
        raise BuildError(
            f"the type of '{name}' is not known",
            found_in=f"pass apply_workarounds, node {node.name}",
            remedy="put the pass after infer_shapes",
        )
    return element_type
