"""Handling of a graph that a provider rejects: responsible nodes stay float, or are reported.

A vendor's compiler may reject a whole graph because of a single node, in words that name no node.
The whole build would fail for a node whose float form the provider takes, or leaves to the CPU. So
the nodes are looked for (`runtime.refusal_bisection`), the search runs again with these float, and
the report says so; how many nodes the provider must take, the placement gate says as always. If
that does not help, the refusal names the found nodes. Exclusion does not help either if nothing
else is lowered: the rest would be the float model under another name.

Search for the nodes that make a provider reject a whole graph without naming nodes.

Pieces of a graph are other graphs: a node in the middle of the whole graph reads the model's inputs
there, or makes its outputs, and a provider may reject only the piece (QNN's simulator takes a
certain 16-bit convolution anywhere but as the last node). So the whole graph is opened repeatedly,
with some of the nodes float: if the provider takes the graph, the float nodes contain the culprits,
and the finally accepted graph is the remedy.

1. With every node float. If the graph is still rejected, the lowered nodes are not the cause.
2. By halving, the least number of nodes from the first on that must be float: the last of these is
   a culprit. The culprit stays float from then on.
3. The same with the culprits so far, until the graph is taken with these alone.

Where floats do not help, the shortest part from the model's inputs on that is refused says at least
how far the provider gets.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import onnx

from edgepack.packager.gates.provider_errors import explain_refusal
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.graph.units import Units
from edgepack.packager.pipeline.provider_validation import ProviderRefusedError, ProviderValidation
from edgepack.packager.pipeline.selection import SearchedCombination
from edgepack.packager.pipeline.settings_search import SettingsSearch
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.deadline import OutOfTimeError

MOST_NODES = 4
"""So many culprits are looked for; a node without weights counts with those that feed it, since
between quantized ones it stays what it is."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the bisection.

    Attributes:
        nodes: Nodes that must stay float, in graph order; empty if float nodes do not help.
        is_enough: Whether the whole graph is taken with these float.
    """

    nodes: tuple[str, ...] = ()
    is_enough: bool = False


class CompileBudgetExhaustedError(Exception):
    """As many graphs were opened as may be, or as long as may be."""


def find_refused(names: Sequence[str], is_taken: Callable[[Collection[str]], bool]) -> Found:
    """Search for the rejected nodes; see the steps above.

    Args:
        names: The nodes that could be float, in graph order; without float nodes the graph is
            rejected.
        is_taken: Whether the whole graph is, with some nodes float. A `CompileBudgetExhaustedError`
            of this function ends the search.
    """
    sensitive_nodes: list[str] = []
    try:
        if not names or not is_taken(names):  # 1.
            return Found()
        while len(sensitive_nodes) < MOST_NODES:
            refused, taken = 0, len(names)  # 2.
            while taken - refused > 1:
                middle = (refused + taken) // 2
                if is_taken((*names[:middle], *sensitive_nodes)):
                    taken = middle
                else:
                    refused = middle
            sensitive_nodes.append(names[taken - 1])
            if is_taken(sensitive_nodes):  # 3.
                return Found(nodes=_in_order(names, sensitive_nodes), is_enough=True)
    except CompileBudgetExhaustedError:
        pass
    return Found(nodes=_in_order(names, sensitive_nodes))


def first_refused(count: int, is_taken: Callable[[int], bool]) -> int | None:
    """Return the last unit of the shortest rejected beginning of a graph, by halving.

    Args:
        count: Number of units; the whole graph is rejected.
        is_taken: Whether a part is accepted, from the first unit on; called with 0 first, which
            shows whether the provider takes anything.

    Returns:
        Last unit of the shortest rejected part; None if nothing is accepted, or the budget of
        sessions is exhausted.
    """
    try:
        if not count or not is_taken(0):
            return None
        taken, refused = 0, count
        while refused - taken > 1:
            middle = (taken + refused) // 2
            if is_taken(middle):
                taken = middle
            else:
                refused = middle
    except CompileBudgetExhaustedError:
        return None
    return refused - 1


def _in_order(names: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in set(chosen))


_MOST_OPENINGS = 40
_MOST_S = 300.0
_MOST_S_ONE = 60.0
"""What looking for the nodes may take; a graph of a thousand nodes takes a dozen openings."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Preparation with nodes left float.

    Attributes:
        searched: With nodes that stay float.
        note: Which, and why.
    """

    searched: SearchedCombination
    note: str


def exclude_unsupported(
    search: SettingsSearch,
    searched: SearchedCombination,
    error: ProviderRefusedError,
    provider_validation: ProviderValidation,
    progress: Progress,
) -> Left:
    """Search again, without the nodes for which the provider refuses the model.

    Args:
        search: Searches again.
        searched: The rejected candidate.
        error: In which words.
        provider_validation: Opens models on the provider.
        progress: Called for each opening.

    Raises:
        BuildError: The refusal, with the nodes if found.
    """
    openings = _Openings(search, searched, provider_validation, progress)
    found, profile = openings.find_nodes(), searched.profile
    further = search.exclude_nodes(searched, found.nodes) if found.is_enough else None
    if further is None:
        sensitive_node = openings.find_first(error.model)
        raise explain_refusal(error, error.model, profile, sensitive_node) from error
    verb = "stays" if len(found.nodes) == 1 else "stay"
    return Left(
        searched=further,
        note=f"{', '.join(found.nodes)} {verb} float: quantized, {profile.device.provider} refuses "
        f"the whole graph ({error.problem.rstrip('.')}). {openings.count} openings told which.",
    )


@dataclass
class _Openings:
    """Opens changed or partial models, within limits of number and time."""

    search: SettingsSearch
    searched: SearchedCombination
    provider_validation: ProviderValidation
    progress: Progress
    end_s: float = field(default_factory=lambda: time.monotonic() + _MOST_S)
    count: int = 0

    def find_nodes(self) -> Found:
        """Return the nodes that must stay float, unless these are all nodes."""
        selector, best = self.search.selector, self.searched.selection.found
        if best is None or not self.searched.selection.is_lowered:
            return Found()
        found = find_refused(
            selector.names,
            lambda float_nodes: self._is_taken(lambda: selector.make_again(best.best, float_nodes)),
        )
        return found if len(found.nodes) < len(selector.names) else Found()

    def find_first(self, model: Path) -> str:
        """Return the unit up to which a model is refused, `name (operator)` a node; "" if
        unknown.
        """
        whole = load_model(model)
        units = Units(whole)
        path = model.parent.with_name("part") / model.name

        def write(part: onnx.ModelProto) -> Path:
            path.parent.mkdir(exist_ok=True)
            save_model(part, path)
            return path

        def is_taken(count: int) -> bool:
            return self._is_taken(
                lambda: write(units.take(0, count) if count else _anything(whole))
            )

        last = first_refused(units.count, is_taken)
        return "" if last is None else _describe(units.nodes(last, last + 1))

    def _is_taken(self, make: Callable[[], Path]) -> bool:
        left_s = self.end_s - time.monotonic()
        if self.count >= _MOST_OPENINGS or left_s <= 0:
            raise CompileBudgetExhaustedError
        self.count += 1
        searched, limit_s = self.searched, min(left_s, _MOST_S_ONE)
        what = "looking for what is refused"
        self.progress(BuildStep(what=what, done=self.count, total=_MOST_OPENINGS))
        path, start_s = make(), time.monotonic()
        try:
            is_taken = self.provider_validation.is_taken(
                path, searched.evaluator, timeout_s=limit_s
            )
        except OutOfTimeError as error:
            raise CompileBudgetExhaustedError from error
        if not is_taken and time.monotonic() - start_s >= limit_s:
            raise CompileBudgetExhaustedError  # it took too long, which is not an answer
        return is_taken


def _describe(nodes: Iterable[onnx.NodeProto]) -> str:
    return ", ".join(f"{node.name} ({node.op_type})" for node in nodes)


def _anything(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a minimal model with the same operator sets: a provider that rejects this model takes
    nothing at all.
    """
    value = model.graph.input[0]
    is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Relu" if is_float else "Identity", [value.name], ["taken"])
    graph = onnx.helper.make_graph([node], "anything", [value], [onnx.ValueInfoProto(name="taken")])
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
