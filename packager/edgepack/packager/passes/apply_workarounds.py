"""Pass `apply_workarounds`: what a provider computes wrongly becomes what it computes right.

Which, and how wrong, stands in the modules that rewrite them: `single_op`, `op_pair`,
`nearest_resize`, `linear_resize` and `padded_averages`.
"""

from collections.abc import Callable

import onnx

from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.workarounds.linear_resize import rewrite_linear_resize
from edgepack.packager.passes.workarounds.nearest_resize import rewrite_nearest_resize
from edgepack.packager.passes.workarounds.op_pair import (
    flatten_softplus,
    flatten_tanh,
    part_sigmoids,
)
from edgepack.packager.passes.workarounds.padded_averages import rewrite_padded_average
from edgepack.packager.passes.workarounds.single_op import (
    divide,
    lengthen_tables,
    name_zeros,
    raise_e,
    sum_last,
)
from edgepack.packager.profiles.pass_settings import ApplyWorkarounds


def apply_workarounds(
    model: onnx.ModelProto, settings: ApplyWorkarounds, context: PassContext
) -> PassResult:
    """Replaces operators by others that compute the same.

    Args:
        model: The model, with shapes; changed in place.
        settings: Which operators.
        context: Where models of one node are written.

    Returns:
        The model, and how many nodes were replaced.

    Raises:
        BuildError: The type of a node's input is not known.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    folder = context.work_dir / "apply_workarounds"
    rewrites: dict[str, tuple[Callable[[onnx.GraphProto, GraphIndex], int], str]] = {
        "Reciprocal": (divide, "Reciprocal became Div, which the provider computes right."),
        "Sigmoid": (
            part_sigmoids,
            "Sigmoid were set apart from the convolutions that they meet, on maps of a size on "
            "which the provider computes the two wrongly together.",
        ),
        "Softplus": (
            flatten_softplus,
            "Softplus of convolutions are taken of one row, on maps of such a size.",
        ),
        "Tanh": (
            flatten_tanh,
            "Tanh of 16 rows are taken of one row, which the provider computes right beside "
            "products.",
        ),
        "Pow": (raise_e, "Pow of a constant base became Exp, which the provider computes right."),
        "CumSum": (sum_last, "CumSum were turned to the last axis, where the provider is right."),
        "Gather": (
            lengthen_tables,
            "Gather read a table that stands twice: the provider reads its last row wrongly.",
        ),
        "Pad": (name_zeros, "Pad name the zero that they are filled with."),
        "Resize": (
            lambda graph, index: (
                rewrite_nearest_resize(graph, index, opsets, folder)
                + rewrite_linear_resize(graph, index_graph(graph))
            ),
            "Resize were written so that the provider takes their rows and columns.",
        ),
        "AveragePool": (
            lambda graph, index: rewrite_padded_average(graph, index, opsets, folder),
            "AveragePool have padding written out that the provider counts wrongly.",
        ),
    }
    notes = []
    for op in settings.ops:
        rewrite, words = rewrites[op]
        count = rewrite(model.graph, index_graph(model.graph))
        if count:
            notes.append(f"{count} {words}")
    return PassResult(model=model, notes=tuple(notes))
