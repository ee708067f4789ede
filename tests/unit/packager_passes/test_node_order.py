"""Nodes are put behind what they read, and stay where they are where they stand right."""

from onnx import parser

from edgepack.packager.graph.node_order import sort_nodes

_HEADER = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x, bool c) => (float[1] y) '


def _order(nodes: str) -> list[str]:
    graph = parser.parse_model(_HEADER + f"{{ {nodes} }}").graph
    sort_nodes(graph)
    return [node.output[0] for node in graph.node]


def test_what_stands_right_stays() -> None:
    assert _order("b = Neg(x) a = Abs(x) y = Add(a, b)") == ["b", "a", "y"]


def test_each_node_comes_behind_what_it_reads() -> None:
    assert _order("y = Add(a, b) b = Neg(a) a = Abs(x)") == ["a", "b", "y"]


def test_what_bodies_read_counts_and_bodies_are_sorted_too() -> None:
    choice = (
        "y = If (c) <then_branch = t () => (float[1] p) { p = Neg(q) q = Abs(a) }, "
        "else_branch = e () => (float[1] r) { r = Exp(b) }>"
    )
    graph = parser.parse_model(_HEADER + f"{{ {choice} a = Abs(x) b = Neg(x) }}").graph
    sort_nodes(graph)
    assert [node.output[0] for node in graph.node] == ["a", "b", "y"]
    (then,) = (it.g for it in graph.node[2].attribute if it.name == "then_branch")
    assert [node.output[0] for node in then.node] == ["q", "p"]
