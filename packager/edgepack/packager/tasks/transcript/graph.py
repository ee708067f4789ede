"""Recognize a model that writes a whole text: a loop with an output of tokens."""

import contextlib
from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import shape_inference

from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.findings import Findings
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.transcript.measure import NAME
from edgepack.tasks.transcript.words import WordReader

_WHOLE = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)

_WRITES = frozenset({"Loop", "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"})
"""Operators that write a text to its end: one token after the other."""


def with_transcript(
    source: SourceModel, declarations: Mapping[str, OutputDeclaration]
) -> SourceModel:
    """Return the model with its output of tokens, if the graph writes a text.

    Args:
        source: The model.
        declarations: Declared outputs; an output declared otherwise is no text.
    """
    if not any("int" in spec.dtype for spec in source.outputs):
        return source
    described = (*declarations, *source.description.outputs)
    with contextlib.suppress(shape_inference.InferenceError):
        name = _find_tokens(infer(source.model), described)
        if name is not None:
            part = TaskOutputs(task=NAME, outputs=(name,), source="graph")
            return source.with_parts(part)
    return source


def find_transcripts(part: TaskOutputs, expected: Sequence[Outputs]) -> Findings:
    """Return findings if the float model's values are texts: not the same for all samples.

    Args:
        part: Candidate output of tokens; a declared output is one.
        expected: The float model's outputs on a few of the samples.
    """
    reader = WordReader(part)
    texts = {reader.read(outputs[part.outputs[0]]) for outputs in expected}
    if len(texts) < 2 and part.source != "declared":
        return Findings()
    return Findings(
        parts=(part,),
        notes=(
            f"Output '{part.outputs[0]}' is a text token by token "
            f"({'declared in [outputs]' if part.source == 'declared' else 'told by its values'}). "
            f"A variant is judged by its {reader.unit} error against the float model's texts.",
        ),
    )


def _find_tokens(graph: onnx.GraphProto, ignored: Collection[str]) -> str | None:
    """Return the only output that may be a text; None without a loop, or for several."""
    index = index_graph(graph)
    if not any(node.op_type in _WRITES for node in graph.node):
        return None
    found = [name for name in index.outputs if name not in ignored and _may_be_text(index, name)]
    return found[0] if len(found) == 1 else None


def _may_be_text(index: GraphIndex, name: str) -> bool:
    """Return True for whole numbers whose count is open."""
    shape = index.shapes.get(name, ())
    is_row = len(shape) in (1, 2) and shape[-1] is None and all(s in (1, None) for s in shape[:-1])
    return is_row and index.types.get(name) in _WHOLE
