"""Search for the nodes that make a provider reject a whole graph without naming nodes.

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

from collections.abc import Callable, Collection, Sequence

import msgspec

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
