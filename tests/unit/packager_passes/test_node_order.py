"""Nodes are put behind what they read, and new names reach all that means the same tensor."""

from onnx import parser

from edgepack.packager.graph.edits import rename_tensors, sort_nodes

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


def test_a_body_may_name_its_own_tensor_like_what_the_node_gives() -> None:
    choice = (
        "y = If (c) <then_branch = t () => (float[1] y) { y = Neg(a) }, "
        "else_branch = e () => (float[1] z) { z = Exp(a) }>"
    )
    assert _order(f"{choice} a = Abs(x)") == ["a", "y"]


def test_a_new_name_does_not_reach_what_a_body_calls_the_same() -> None:
    choice = (
        "y = If (c) <then_branch = t () => (float[1] a) { a = Neg(b) }, "
        "else_branch = e () => (float[1] z) { z = Exp(a) }>"
    )
    graph = parser.parse_model(_HEADER + f"{{ a = Abs(x) b = Abs(x) {choice} }}").graph
    rename_tensors(graph, {"a": "new"})
    bodies = {it.name: it.g for it in graph.node[2].attribute}
    then, other = bodies["then_branch"], bodies["else_branch"]
    assert [then.node[0].input[0], then.node[0].output[0], then.output[0].name] == ["b", "a", "a"]
    assert other.node[0].input[0] == "new"


def test_a_new_name_does_not_reach_a_weight_that_a_body_calls_the_same() -> None:
    choice = (
        "y = If (c) <then_branch = t () => (float[1] p) <float[1] a = {2}> { p = Add(b, a) }, "
        "else_branch = e () => (float[1] z) { z = Exp(a) }>"
    )
    graph = parser.parse_model(_HEADER + f"{{ a = Abs(x) b = Abs(x) {choice} }}").graph
    rename_tensors(graph, {"a": "new", "b": "other"})
    bodies = {it.name: it.g for it in graph.node[2].attribute}
    then = bodies["then_branch"]
    assert (list(then.node[0].input), then.initializer[0].name) == (["other", "a"], "a")
    assert [name for node in graph.node[:2] for name in node.output] == ["new", "other"]
