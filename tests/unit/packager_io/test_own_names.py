"""Reports and refusals name nodes as the model does."""

import onnx
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.passes.clean import set_names_apart
from edgepack.packager.reports.own_names import name_in_error, name_in_report, own_names
from edgepack.packager.search.attempts import SensitiveNode
from tests.unit.packager_io.reports import make_report, make_variant


def _graph() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["enc"], name="enc"),
        helper.make_node("Relu", ["enc"], ["enc/q"], name="enc/q"),
        helper.make_node("Relu", ["enc/q"], ["enc/q/out:0"], name="a|b"),
        helper.make_node("Relu", ["enc/q/out:0"], ["y"], name="y"),
    ]
    return helper.make_graph(nodes, "g", [], [])


def test_names_that_were_set_apart_are_told_as_the_model_has_them() -> None:
    graph = _graph()
    spell = own_names(graph)
    set_names_apart(graph)
    renamed = {name for node in graph.node for name in (node.name, *node.output)}
    assert "enc|q" in renamed, "it is called like a part of enc"
    assert {spell(name) for name in renamed} == {"enc", "enc/q", "enc/q/out:0", "a|b", "y"}
    assert spell("costliest: enc|q| (0.1), enc|q/scale; a|b") == (
        "costliest: enc/q (0.1), enc/q/scale; a|b"
    )


def test_a_report_and_a_refusal_have_them() -> None:
    spell = own_names(_graph())
    report = make_report(make_variant(sensitive_nodes=(SensitiveNode(name="enc|q|", noise=0.1),)))
    told = name_in_report(report, spell)
    assert told.variants[0].sensitive_nodes == (SensitiveNode(name="enc/q", noise=0.1),)
    assert told.variants[0].files == report.variants[0].files
    error = BuildError("node enc|q is wrong", found_in="pass clean, node enc|q")
    name_in_error(error, spell)
    assert error.problem == "node enc/q is wrong"
    assert error.found_in == "pass clean, node enc/q"
    assert error.remedy is None
