"""Every graph that is scanned can be drawn, computes something, and is judged by its profile."""

from collections import Counter

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks.operators.__main__ import WRONG, Found, judge
from benchmarks.operators.cases import Case, cases
from edgepack.packager.profiles.reading import load_profile


def test_each_graph_is_scanned_at_several_sizes_under_a_name_of_its_own() -> None:
    counts = Counter(case.name for case in cases())
    assert set(counts.values()) == {4}
    assert len({(case.name, case.size) for case in cases()}) == len(cases())


@pytest.mark.parametrize("case", cases()[::8], ids=lambda case: f"{case.name} {case.size}")
def test_a_graph_is_a_model_of_its_operators(case: Case) -> None:
    model = case.model()
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["y"]
    assert all(axis.dim_value for axis in model.graph.output[0].type.tensor_type.shape.dim)
    if any(node.op_type == "Resize" for node in model.graph.node):
        return  # the reference differs from ONNX Runtime at ties
    feeds = {"x": np.full((1, *case.size), 0.5, dtype=np.float32)}
    [got] = ReferenceEvaluator(model).run(None, feeds)
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("profile", "found", "verdict"),
    [
        ("qnn-htp", Found(error=0.001), "right"),
        ("qnn-htp", Found(error=0.05), WRONG),
        ("qnn-htp-a8w8", Found(error=0.05), "right"),
        ("qnn-htp-a8w8", Found(error=0.5), WRONG),
        ("qnn-htp", Found(error=float("inf")), WRONG),
        ("qnn-htp", Found(error=0.001, varies=True), WRONG),
        ("qnn-htp", Found(words="refused: no"), "-"),
    ],
)
def test_an_error_is_judged_by_the_bits_of_the_activations(
    profile: str, found: Found, verdict: str
) -> None:
    assert judge(found, load_profile(profile)) == verdict
