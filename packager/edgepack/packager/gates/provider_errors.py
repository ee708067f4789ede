"""Explanations and remedies for refusals of or by a provider whose own words are unclear."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.providers import known_provider
from edgepack.errors import BuildError
from edgepack.packager.gates.checks import Refusal
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.graph.operators import facts
from edgepack.packager.profiles.schema import Profile

_NODES_SHOWN = 3

_OTHER_PROFILE = "another profile for this device"

_NAMED_OPERATOR = re.compile(r"Node '[^']+' OpType: ?(?P<op>\w+)")
"""How ONNX Runtime names the node that it cannot go on with."""


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal that has been looked into.

    Attributes:
        words: Regular expression that matches the provider's message.
        meaning: Known meaning of the message.
        ops: Operator types that caused the refusal before.
        without_ops: Remedy for these operators; ends with their names.
        ops_at_input: Operator types that caused the refusal when reading the model's input.
        before_ops: Remedy for these operators; ends with their names.
        in_any_case: Remedy in any case.
    """

    words: str
    meaning: str
    ops: frozenset[str]
    without_ops: str
    ops_at_input: frozenset[str]
    before_ops: str
    in_any_case: str


_REFUSALS = (
    _Known(
        # onnxruntime-qnn 2.7: a speech detector whose LSTM is an operator gets this for v68, and
        # compiles from v69 on; the same one with its LSTM written as products compiles for v68.
        words=r"finalize QNN graph.*MEM_ALLOC",
        meaning="the chip's own memory does not suffice for a part of the graph, or it has no form "
        "of that; QNN does not say of which, and memory of this machine is not meant",
        ops=frozenset({"LSTM", "GRU", "RNN"}),
        without_ops="export the model with products and sums in place of the operators that "
        "this was seen with:",
        # The same library refuses whole graphs so where a comparison, or a 16-bit PRelu, is what
        # the model's input goes to first; behind any other operator both are taken.
        ops_at_input=frozenset(
            {"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "PRelu"}
        ),
        before_ops="export the model with another operator between its input and what this "
        "was seen with there:",
        in_any_case="a profile for a newer chip of the same maker (edgepack profiles list)",
    ),
)


def explain_refusal(
    error: BuildError, model: Path, profile: Profile, sensitive_node: str = ""
) -> BuildError:
    """Return a provider's refusal with known facts about the cause.

    Args:
        error: The refusal, in the provider's words.
        model: The rejected file.
        profile: The profile of the file.
        sensitive_node: Up to which node the graph is refused, as `name (operator)`; "" if unknown.

    Returns:
        The same refusal where nothing more is known.
    """
    known = next((entry for entry in _REFUSALS if re.search(entry.words, error.problem)), None)
    if known is None and not sensitive_node:
        named = _NAMED_OPERATOR.search(error.problem)
        if named is None:
            return error
        remedy = f"export the model without {named['op']}, or {_OTHER_PROFILE}"
        return BuildError(error.problem, found_in=error.found_in, remedy=remedy)
    found_in = f"{model.name}{_chip(profile)}"
    meaning, remedies = known.meaning if known else "", [known.in_any_case] if known else []
    if sensitive_node:
        meaning = f"it refuses the graph up to {sensitive_node}, and takes what comes before"
        found_in = f"{found_in}: {sensitive_node}"
        remedies = [f"export the model without {sensitive_node} or in another form", _OTHER_PROFILE]
    if known is not None:
        remedies += _without_known_ops(known, load_model(model).graph)
    return BuildError(
        f"{error.problem.rstrip('.')}: {meaning}", found_in=found_in, remedy=", or ".join(remedies)
    )


def _without_known_ops(known: _Known, graph: onnx.GraphProto) -> list[str]:
    """Return remedies for the nodes of a graph that caused such a refusal before."""
    seen = [node for node in graph.node if node.op_type in known.ops]
    at_input = [node for node in _first_readers(graph) if node.op_type in known.ops_at_input]
    return [
        f"{words} {', '.join(f'{node.name} ({node.op_type})' for node in nodes[:_NODES_SHOWN])}"
        for words, nodes in ((known.without_ops, seen), (known.before_ops, at_input))
        if nodes
    ]


def _chip(profile: Profile) -> str:
    """Return the chip that a profile names, by its provider's options: ` for htp_arch = 68`."""
    plugin = known_provider(profile.device.provider).plugin
    chip_options = plugin.chip_options if plugin else ()
    options = ", ".join(
        f"{name} = {value}"
        for name, value in sorted(profile.provider.options.items())
        if name in chip_options
    )
    return f" for {options}" if options else ""


def name_known_wrong_ops(refusal: Refusal, model: Path, profile: Profile) -> Refusal:
    """Return a refusal of wrong outputs with the nodes of types that are known to be computed
    wrongly.

    Args:
        refusal: Why the outputs must not be published.
        model: The file with the wrong outputs.
        profile: Its gates say which types.
    """
    nodes = [
        f"{node.name} ({node.op_type})"
        for node in load_model(model).graph.node
        if node.op_type in profile.gates.known_wrong_ops
    ]
    if not nodes:
        return refusal
    more = len(nodes) - _NODES_SHOWN
    names = ", ".join(nodes[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    remedy = f"{refusal.remedy}. Seen to be computed wrongly there, in some graphs: {names}"
    return replace(refusal, remedy=remedy)


def _first_readers(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that read an input of the model, directly or quantized."""
    tensors = {value.name for value in graph.input}
    for node in graph.node:
        if not tensors.isdisjoint(node.input):
            if facts(node.op_type).is_conversion == "pair":
                tensors.update(node.output)
            else:
                yield node
