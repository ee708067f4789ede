"""What a provider's refusal means where its own words do not say it, and what to do."""

import re
from dataclasses import dataclass
from pathlib import Path

from edgepack.agent.runtime.providers import known_provider
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.profile.schema import Profile

_NODES_SHOWN = 3

_NAMED_OPERATOR = re.compile(r"Node '[^']+' OpType: ?(?P<op>\w+)")
"""How ONNX Runtime names the node that it cannot go on with."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A refusal that has been looked into.

    Attributes:
        words: Regular expression that finds it in the provider's message.
        meaning: What is known of it.
        suspects: Operator types that it was seen with.
        without_suspects: What to do with the suspects; ends with their names.
        otherwise: What to do in any case.
    """

    words: str
    meaning: str
    suspects: frozenset[str]
    without_suspects: str
    otherwise: str


_REFUSALS = (
    _Known(
        # onnxruntime-qnn 2.7: a speech detector whose LSTM is an operator gets this for v68, and
        # compiles from v69 on; the same one with its LSTM written as products compiles for v68.
        words=r"finalize QNN graph.*MEM_ALLOC",
        meaning="the chip's own memory does not suffice for a part of the graph; QNN does not say "
        "for which, and memory of this machine is not meant",
        suspects=frozenset({"LSTM", "GRU", "RNN"}),
        without_suspects="export the model with products and sums in place of the operators that "
        "this was seen with:",
        otherwise="a profile for a newer chip of the same maker (edgepack profiles list)",
    ),
)


def explain_refusal(error: BuildError, model: Path, profile: Profile) -> BuildError:
    """A provider's refusal with what is known of it.

    Args:
        error: The refusal, in the provider's words.
        model: The file that it refused.
        profile: The profile that it was made for.

    Returns:
        The same refusal where nothing more is known.
    """
    known = next((entry for entry in _REFUSALS if re.search(entry.words, error.problem)), None)
    if known is None:
        named = _NAMED_OPERATOR.search(error.problem)
        if named is None:
            return error
        remedy = f"export the model without {named['op']}, or another profile for this device"
        return BuildError(error.problem, found_in=error.found_in, remedy=remedy)
    suspects = [
        f"{node.name} ({node.op_type})"
        for node in load_model(model).graph.node
        if node.op_type in known.suspects
    ]
    remedy = known.otherwise
    if suspects:
        remedy += f", or {known.without_suspects} {', '.join(suspects[:_NODES_SHOWN])}"
    plugin = known_provider(profile.device.provider).plugin
    chip_options = plugin.chip_options if plugin else ()
    options = ", ".join(
        f"{name} = {value}"
        for name, value in sorted(profile.provider.options.items())
        if name in chip_options
    )
    return BuildError(
        f"{error.problem.rstrip('.')}: {known.meaning}",
        found_in=f"{model.name} for {options}" if options else error.found_in,
        remedy=remedy,
    )
