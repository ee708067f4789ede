"""Makes the floats that enter a tail which selects outputs of the source model.

Every pass therefore keeps these outputs, every candidate returns them, and every comparison with
the float model (`gates.accuracy`) includes them. A variant's own file does not have these outputs
(`without_watched`).

Such a tail is TopK, NonMaxSuppression, and all following nodes. Detectors and retrieval models are
exported with such a tail. The outputs of the tail are decisions: if two scores are nearly equal,
any rounding changes their order, and with the order every integer and every following row. How near
a model stays to another is shown by the floats that enter the tail.
"""

from collections.abc import Collection, Iterable
from copy import deepcopy

import msgspec
import onnx
from msgspec.structs import replace
from onnx import shape_inference

from edgepack.packager.graph.edits import drop_unused_nodes, refill
from edgepack.packager.graph.float_types import FLOAT_TYPES
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import (
    GraphIndex,
    index_graph,
    is_standard,
    reached,
    subgraphs,
    used_names,
)
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.source.model import SourceModel
from edgepack.tasks.description import (
    IGNORED,
    SELECTION,
    UNKNOWN,
    ModelDescription,
    TaskOutputs,
)
from edgepack.tasks.detections.layouts import DETECTIONS, DetectionHead, suppressed
from edgepack.text import counted


def watch_before_postprocessing(source: SourceModel) -> SourceModel:
    """Return the model with the floats that enter its tail as further outputs, if any.

    Args:
        source: The model; not changed. An output with a meaning declared by a person is evaluated
            by that meaning, from any source.

    Returns:
        The model, its description, and a note; unchanged without a selection.
    """
    if not has_selection(source.model.graph):
        return source
    try:
        inferred = infer(source.model)
    except shape_inference.InferenceError:
        return source  # the pass that needs shapes says what is wrong with them
    model = deepcopy(source.model)
    refill(model.graph.value_info, inferred.value_info)
    tail = find_postprocessing(model.graph)
    described = source.description.outputs
    selected = [name for name in tail.outputs if name not in described] if tail else []
    if tail is None or not selected:
        return source
    own = {value.name for value in model.graph.output}
    watched = tuple(name for name in tail.tensors if name not in own)
    model.graph.output.extend(value for value in inferred.value_info if value.name in watched)
    inside = tuple(name for name in tail.tensors if name not in described)
    parts = [_selection(name) for name in selected]
    if inside:
        # Scores, boxes and distances enter a selection: each is measured by all these meanings.
        parts.append(TaskOutputs(task=UNKNOWN, outputs=inside, source="graph"))
    described_model = source.with_parts(*parts)
    count = sum(
        node.op_type != "Constant" for node in _tail_nodes(model.graph, described_model.description)
    )
    note = (
        f"The model ends in a selection ({', '.join(tail.ops)}), which any rounding reorders where "
        f"scores are alike. The {counted(count, 'node')} behind {_listed(tail.tensors)} stay float."
    )
    return replace(described_model, model=model, watched=watched, notes=(*source.notes, note))


def describe_selection(source: SourceModel, described: ModelDescription) -> ModelDescription:
    """Return the description with selections for outputs of the tail whose boxes are not confirmed.

    Where boxes of the tail's outputs are compared, nothing asks for the floats that enter it.

    Args:
        source: The model with the floats that enter its tail.
        described: Meaning of the outputs, with a head only where values confirm the head.
    """
    head = source.description.part_of(DETECTIONS)
    if not source.watched or head is None or not DetectionHead.of(head).facts.is_suppressed:
        return described
    if described.part_of(DETECTIONS) is None:
        names = [name for name in head.outputs if name not in described.outputs]
        return described.with_parts(*(_selection(name) for name in names))
    if described.part_of(SELECTION) is not None:
        return described
    ignored = TaskOutputs(task=IGNORED, outputs=source.watched, source="graph")
    return described.without(source.watched).with_parts(ignored)


def describe_evaluation(watched: Collection[str], description: ModelDescription) -> tuple[str, ...]:
    """Return how selected outputs are evaluated, a sentence; nothing where no output is selected.

    Args:
        watched: The floats that enter the tail.
        description: Meaning of the outputs.
    """
    selected = description.outputs_of(SELECTION)
    if not selected:
        return ()
    entering = f" that enter it, {_listed(watched)}," if watched else " that enter it"
    return (
        f"The selection is judged by the floats{entering} and of {_listed(selected)} it is seen "
        "how much of what the float model selects is there, in any order.",
    )


def postprocessing_names(
    graph: onnx.GraphProto, description: ModelDescription, watched: Collection[str] = ()
) -> tuple[str, ...]:
    """Return names of the nodes that only serve selected outputs; none without a selection.

    Args:
        graph: The model after any passes: its outputs have the original names.
        description: Meaning of the outputs.
        watched: The floats that enter the tail.
    """
    return tuple(node.name for node in _tail_nodes(graph, description, watched))


def without_watched(model: onnx.ModelProto, watched: Collection[str]) -> None:
    """Remove outputs that were only watched from a model, with the nodes that serve only these."""
    graph = model.graph
    refill(graph.output, (value for value in graph.output if value.name not in watched))
    drop_unused_nodes(graph)


def _selection(name: str) -> TaskOutputs:
    return TaskOutputs(task=SELECTION, outputs=(name,), source="graph")


def _tail_nodes(
    graph: onnx.GraphProto, description: ModelDescription, watched: Collection[str] = ()
) -> tuple[onnx.NodeProto, ...]:
    selected = {*description.outputs_of(SELECTION), *(suppressed(description) if watched else ())}
    if not selected:
        return ()
    names = [value.name for value in graph.output]
    read = [name for name in description.evaluated(names) if name not in selected]
    return nodes_beyond(graph, {*read, *watched})


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


class Postprocessing(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a graph that ranks or selects.

    Attributes:
        tensors: Input floats of the tail, in graph order; all are made before the tail.
        outputs: Outputs of the tail.
        ops: Operators that select, each once, sorted.
    """

    tensors: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[str, ...]


def has_selection(graph: onnx.GraphProto) -> bool:
    """Return True if any operator of a graph ranks or selects."""
    return any(_selects(node) for node in graph.node)


def find_postprocessing(graph: onnx.GraphProto) -> Postprocessing | None:
    """Find the tail that ends in the graph's outputs.

    1. All nodes behind an operator that selects are the tail, unless an operator with weights is
       among them: a selection in the middle of a network (two-stage detectors, query selection) is
       not a tail.
    2. Integers and booleans that enter the tail (classes by ArgMax, comparisons) belong to the
       tail, and so do their producers, up to floats.
    3. If the floats are pieces of a common tensor, that tensor is taken, and the pieces belong to
      the tail.
    4. These floats must not depend on another selection: their rows would change places too.

    Args:
        graph: The graph with its types.

    Returns:
        The tail; None without a tail, or if the tail cannot be distinguished.
    """
    index = index_graph(graph)
    constants = _constants(index)
    last = _after_weights(index, constants)
    roots = [p for p, node in enumerate(graph.node) if _selects(node) and p in last]
    tail = _descendants(index, roots)
    made = {name for position in tail for name in graph.node[position].output}
    outputs = tuple(name for name in index.outputs if name in made)
    tensors = _enter(index, tail, constants)
    body = positions_behind(index, tensors)
    if not tensors or not outputs or any(_selects(graph.node[position]) for position in body):
        return None
    return Postprocessing(
        tensors=tensors,
        outputs=outputs,
        ops=tuple(
            sorted({name for root in roots for name in _postprocessing_ops(graph.node[root])})
        ),
    )


def positions_behind(index: GraphIndex, names: Iterable[str]) -> set[int]:
    """Return indices of the nodes that tensors are computed by."""

    def makers(read: Iterable[str]) -> list[int]:
        return [index.producers[name] for name in read if name in index.producers]

    return reached(makers(names), lambda position: makers(_reads(index.graph.node[position])))


def nodes_beyond(graph: onnx.GraphProto, outputs: Collection[str]) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes that none of these outputs depends on, in graph order."""
    body = positions_behind(index_graph(graph), outputs)
    return tuple(node for position, node in enumerate(graph.node) if position not in body)


def _selects(node: onnx.NodeProto) -> bool:
    return bool(_postprocessing_ops(node))


def _postprocessing_ops(node: onnx.NodeProto) -> set[str]:
    """Return the postprocessing operators of a node, bodies of control flow included."""
    found = {node.op_type} if facts(node.op_type).selects else set()
    for body in subgraphs(node):
        for inner in body.node:
            found |= _postprocessing_ops(inner)
    return found


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the inputs of a node, bodies of control flow included."""
    return {*filter(None, node.input), *(name for b in subgraphs(node) for name in used_names(b))}


def _constants(index: GraphIndex) -> set[str]:
    """Return tensors that follow from initializers alone."""
    known = set(index.initializers) - set(index.inputs)
    for node in index.graph.node:
        reads = _reads(node)
        if (reads or node.op_type == "Constant") and reads <= known:
            known.update(node.output)
    return known


def _after_weights(index: GraphIndex, constants: Collection[str]) -> set[int]:
    """Return nodes that no node with weights follows, in any way."""
    nodes = index.graph.node
    computing = [p for p, node in enumerate(nodes) if _computes(node, constants)]
    before = positions_behind(index, {name for p in computing for name in _reads(nodes[p])})
    return set(range(len(nodes))) - before - set(computing)


def _computes(node: onnx.NodeProto, constants: Collection[str]) -> bool:
    """Return True if a node reads constants, or has a foreign domain and reads any input."""
    has_weights = facts(node.op_type).weights in ("product", "layer")
    may_compute = has_weights or not is_standard(node)
    if may_compute and any(name in constants for name in node.input):
        return True
    return any(
        _computes(inner, {*constants, *(tensor.name for tensor in body.initializer)})
        for body in subgraphs(node)
        for inner in body.node
    )


def _descendants(index: GraphIndex, roots: Iterable[int]) -> set[int]:
    found = set(roots)
    made = {name for root in found for name in index.graph.node[root].output}
    for position, node in enumerate(index.graph.node):
        if position not in found and made & _reads(node):
            found.add(position)
            made.update(node.output)
    return found


def _enter(index: GraphIndex, tail: set[int], constants: Collection[str]) -> tuple[str, ...]:
    """Apply steps 2 and 3: return the floats that enter the tail; add the producers of its other
    inputs.
    """
    entering: set[str] = set()
    waiting = sorted(tail)
    while waiting:
        node = index.graph.node[waiting.pop()]
        if facts(node.op_type).reads_shape:
            continue
        for name in _reads(node) - set(constants):
            position = index.producers.get(name)
            if position is None or position in tail:
                continue
            if index.types.get(name) in FLOAT_TYPES:
                entering.add(name)
            else:
                tail.add(position)
                waiting.append(position)
    whole = {_whole(index, name, constants) for name in entering}
    return tuple(sorted(whole, key=lambda name: (index.producers[name], name)))


def _whole(index: GraphIndex, name: str, constants: Collection[str]) -> str:
    """Return the tensor that a slice is cut from: a single class may be too rare to evaluate."""
    node = index.graph.node[index.producers[name]]
    is_told = node.op_type == "Reshape" or all(n in constants for n in node.input[1:] if n)
    source = node.input[0] if facts(node.op_type).cuts and is_told else ""
    if source not in index.producers or index.types.get(source) not in FLOAT_TYPES:
        return name
    return _whole(index, source, constants)
