"""Makes the floats that enter a tail which selects outputs of the source model.

Every pass therefore keeps these outputs, every candidate returns them, and every comparison with
the float model (`gates.accuracy`) includes them. A variant's own file does not have these outputs
(`without_watched`).
"""

from collections.abc import Collection
from copy import deepcopy

import onnx
from msgspec.structs import replace
from onnx import shape_inference

from edgepack.packager.graph.edits import drop_unused_nodes, refill
from edgepack.packager.graph.postprocessing import find_postprocessing, has_selection, nodes_beyond
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.source.model import SourceModel
from edgepack.tasks.description import SELECTION, UNKNOWN, ModelDescription, TaskOutputs
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
    parts = [TaskOutputs(task=SELECTION, outputs=(name,), source="graph") for name in selected]
    if inside:
        # Scores, boxes and distances enter a selection: each is measured by all these meanings.
        parts.append(TaskOutputs(task=UNKNOWN, outputs=inside, source="graph"))
    described_model = source.with_parts(*parts)
    count = sum(
        node.op_type != "Constant" for node in _tail_nodes(model.graph, described_model.description)
    )
    note = (
        f"The model ends in a selection ({', '.join(tail.ops)}), which any rounding reorders where "
        f"scores are alike: it is judged by the floats that enter it, {_listed(tail.tensors)}. The "
        f"{counted(count, 'node')} from there on stay float, and of {_listed(selected)} it is seen "
        "how much of what the float model selects is there, in any order."
    )
    return replace(described_model, model=model, watched=watched, notes=(*source.notes, note))


def postprocessing_names(graph: onnx.GraphProto, description: ModelDescription) -> tuple[str, ...]:
    """Return names of the nodes that only serve selected outputs; none without a selection.

    Args:
        graph: The model after any passes: its outputs have the original names.
        description: Meaning of the outputs.
    """
    return tuple(node.name for node in _tail_nodes(graph, description))


def without_watched(model: onnx.ModelProto, watched: Collection[str]) -> None:
    """Remove outputs that were only watched from a model, with the nodes that serve only these."""
    graph = model.graph
    refill(graph.output, (value for value in graph.output if value.name not in watched))
    drop_unused_nodes(graph)


def _tail_nodes(
    graph: onnx.GraphProto, description: ModelDescription
) -> tuple[onnx.NodeProto, ...]:
    if description.part_of(SELECTION) is None:
        return ()
    return nodes_beyond(graph, description.evaluated([value.name for value in graph.output]))


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
