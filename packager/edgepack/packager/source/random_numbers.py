"""Models with random outputs for the same sample, which cannot be compared.

Some random numbers belong to a model and are harmless, such as the dither of an audio front end. So
the outputs decide, and the operators only explain.
"""

import numpy as np

from edgepack.errors import BuildError
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import all_nodes
from edgepack.packager.runtime.model_run import largest_difference
from edgepack.packager.source.model import SourceModel
from edgepack.packager.wording import some_of
from edgepack.tasks.arrays import Outputs

_TOLERANCE = 5e-3
"""Share of an output's size by which two runs may differ: what a pass may change is no more."""

_SHOWN = 3


def check_repeatable(source: SourceModel, first: Outputs, second: Outputs) -> None:
    """Reject a model with outputs that differ from run to run.

    Args:
        source: The model.
        first, second: Its outputs for a sample, in two runs on a single thread.

    Raises:
        BuildError: The outputs differ; the message names the nodes that draw random numbers.
    """
    differing = [
        name
        for name, value in first.items()
        if value.dtype.kind in "iub" and not np.array_equal(value, second[name])
    ]
    noise = largest_difference([first], [second], source.description)
    if not differing and noise <= _TOLERANCE:
        return
    makers = [
        f"{node.name or node.output[0]} ({node.op_type})"
        for node in all_nodes(source.model.graph)
        if facts(node.op_type).draws
    ]
    raise BuildError(
        "the float model gives other outputs each time it runs on the same sample: nothing can be "
        "compared with that",
        found_in=f"{source.path}, random numbers: {some_of(makers, _SHOWN)}"
        if makers
        else str(source.path),
        remedy="export it for inference (PyTorch: model.eval()), and with random numbers that "
        "belong to it as an input",
    )
