"""Finds GELU where it was exported as its formula, and makes it one operator again.

    gelu(x) = 0.5 * x * (1 + erf(x / sqrt(2)))

The factors come in any order: `0.5 * (x * (1 + e))`, `x * (0.5 * (1 + e))`, `(0.5 * x) * (1 + e)`.
"""

import msgspec
import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.node_chains import (
    beside,
    is_near,
    only_reader,
    producer,
    replace,
    scalar,
)
from edgepack.packager.graph.questions import GraphIndex, index_graph
from edgepack.packager.profile.schema import Limits

_FIRST_OPSET_WITH_GELU = 20
_MICROSOFT = "com.microsoft"


class _Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A GELU as it was written: input, output, and nodes, the last of which makes the output."""

    source: str
    output: str
    nodes: tuple[str, ...]


def fuse_gelu(model: onnx.ModelProto, limits: Limits) -> str:
    """Replaces each GELU that is written out by one node, where the provider reads that.

    Args:
        model: The model; changed in place.
        limits: What the provider reads.

    Returns:
        A note of what was done, or "" where there is no GELU.
    """
    index = index_graph(model.graph)
    chains = [found for node in model.graph.node if (found := _match(index, node)) is not None]
    if not chains:
        return ""
    domain = _domain(model, limits)
    if domain is None:
        return (
            f"{len(chains)} GELU stay as exported: Gelu needs opset {_FIRST_OPSET_WITH_GELU}, or a "
            "provider that reads ONNX Runtime's own."
        )
    if domain and domain not in {entry.domain for entry in model.opset_import}:
        model.opset_import.add(domain=domain, version=1)
    replace(
        model.graph,
        {name for chain in chains for name in chain.nodes},
        [
            (
                chain.nodes[-1],
                helper.make_node(
                    "Gelu",
                    [chain.source],
                    [chain.output],
                    name=f"{chain.nodes[-1]}/Gelu",
                    domain=domain,
                ),
            )
            for chain in chains
        ],
    )
    return f"{len(chains)} GELU became one node each."


def _domain(model: onnx.ModelProto, limits: Limits) -> str | None:
    if opset_of(model) >= _FIRST_OPSET_WITH_GELU:
        return ""
    return _MICROSOFT if limits.reads_microsoft("Gelu") else None


def _match(index: GraphIndex, erf: onnx.NodeProto) -> _Chain | None:
    if erf.op_type != "Erf":
        return None
    scaled = producer(index, erf.input[0], "Div", "Mul")
    if scaled is None or only_reader(index, scaled.output[0], "Erf") is None:
        return None
    constant = next((n for n in scaled.input if scalar(index, n) is not None), "")
    source = beside(scaled, constant)
    wanted = np.sqrt(2.0) if scaled.op_type == "Div" else np.sqrt(0.5)
    if not is_near(scalar(index, constant), wanted):
        return None
    plus = only_reader(index, erf.output[0], "Add")
    if plus is None or not is_near(scalar(index, beside(plus, erf.output[0])), 1.0):
        return None
    first = only_reader(index, plus.output[0], "Mul")
    if first is None:
        return None
    chain = [scaled.name, erf.name, plus.name]
    other = beside(first, plus.output[0])
    half = producer(index, other, "Mul")
    if (
        half is not None
        and source in half.input
        and is_near(scalar(index, beside(half, source)), 0.5)
        and only_reader(index, half.output[0], "Mul") is not None
    ):
        return _Chain(
            source=source,
            output=first.output[0],
            nodes=(*chain, half.name, first.name),
        )
    last = only_reader(index, first.output[0], "Mul")
    if last is None:
        return None
    factors = (other, beside(last, first.output[0]))
    if source not in factors or not any(is_near(scalar(index, name), 0.5) for name in factors):
        return None
    return _Chain(source=source, output=last.output[0], nodes=(*chain, first.name, last.name))
