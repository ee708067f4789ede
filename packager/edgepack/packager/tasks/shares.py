"""Recognize probabilities that each stand for themselves: a row of values behind a Sigmoid."""

from collections.abc import Iterator, Sequence

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.source.model import SourceModel
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.likelihood import are_probabilities

_KEEP_VALUES = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def find_shares(
    source: SourceModel, expected: Sequence[Outputs], names: Sequence[str]
) -> Iterator[TaskOutputs]:
    """Yield the outputs of a single row with values that a Sigmoid made and the samples confirm.

    Args:
        source: The model.
        expected: The float model's outputs, one dict a sample.
        names: Outputs of which nothing is known.
    """
    index = index_graph(source.model.graph)
    for name in names:
        values = [outputs[name] for outputs in expected]
        is_row = all(value.size <= max(value.shape, default=1) for value in values)
        tensor = name
        while (at := index.producers.get(tensor)) is not None:
            node = index.graph.node[at]
            if node.op_type not in _KEEP_VALUES:
                if node.op_type == "Sigmoid" and is_row and are_probabilities(values):
                    yield TaskOutputs(task="probabilities", outputs=(name,), source="graph")
                break
            tensor = node.input[0]
