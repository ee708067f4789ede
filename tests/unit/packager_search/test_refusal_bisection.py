"""Which nodes a provider refuses a graph for is found by opening it with some of them float."""

from collections.abc import Callable, Collection

import pytest

from edgepack.packager.pipeline.unsupported_nodes import (
    MOST_NODES,
    CompileBudgetExhaustedError,
    Found,
    find_refused,
    first_refused,
)

_NAMES = tuple(f"n{number}" for number in range(200))


class _Provider:
    """Takes a graph where all of some nodes are float.

    Attributes:
        asked: How often it was.
    """

    def __init__(self, *sensitive_nodes: str, most: int = 1000) -> None:
        self._culprits = set(sensitive_nodes)
        self._most = most
        self.asked = 0

    def __call__(self, float_nodes: Collection[str]) -> bool:
        if self.asked == self._most:
            raise CompileBudgetExhaustedError
        self.asked += 1
        return self._culprits <= set(float_nodes)


@pytest.mark.parametrize("sensitive_node", ["n0", "n1", "n77", "n199"])
def test_one_among_hundreds_is_found_in_a_dozen_openings(sensitive_node: str) -> None:
    provider = _Provider(sensitive_node)
    assert find_refused(_NAMES, provider) == Found(nodes=(sensitive_node,), is_enough=True)
    assert provider.asked <= 12


@pytest.mark.parametrize(
    "sensitive_nodes", [("n3", "n150"), ("n41", "n42", "n43"), ("n0", "n1", "n2", "n199")]
)
def test_several_are_found_in_the_order_of_the_graph(sensitive_nodes: tuple[str, ...]) -> None:
    assert find_refused(_NAMES, _Provider(*sensitive_nodes)) == Found(
        nodes=sensitive_nodes, is_enough=True
    )


def test_more_than_are_looked_for_are_not_enough() -> None:
    found = find_refused(_NAMES, _Provider(*_NAMES[10 : 11 + MOST_NODES]))
    assert not found.is_enough
    assert len(found.nodes) == MOST_NODES


def test_where_floats_are_refused_too_one_opening_says_it() -> None:
    provider = _Provider("no node of the graph")
    assert find_refused(_NAMES, provider) == Found()
    assert provider.asked == 1
    assert find_refused((), provider) == Found()


def test_an_end_of_the_openings_ends_the_search_and_nothing_is_claimed() -> None:
    assert find_refused(_NAMES, _Provider("n77", most=5)) == Found()


def _from(refused: int, asked: list[int]) -> Callable[[int], bool]:
    def is_taken(count: int) -> bool:
        asked.append(count)
        return count <= refused

    return is_taken


@pytest.mark.parametrize("unit", [0, 1, 60, 99])
def test_the_unit_as_which_a_part_is_refused_is_found_by_halving(unit: int) -> None:
    asked: list[int] = []
    assert first_refused(100, _from(unit, asked)) == unit
    assert len(asked) <= 8
    assert asked[0] == 0, "whether anything is taken"


def test_where_nothing_at_all_is_taken_no_node_is_to_blame() -> None:
    asked: list[int] = []
    assert first_refused(100, _from(-1, asked)) is None
    assert asked == [0]


def test_no_unit_is_named_where_no_more_may_be_opened() -> None:
    def is_taken(count: int) -> bool:
        if count:
            raise CompileBudgetExhaustedError
        return True

    assert first_refused(100, is_taken) is None
