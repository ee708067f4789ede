"""Products with one-hot matrices become lookups, and what follows of a row goes into the table."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassResult
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.profiles.pass_settings import Optimize
from edgepack.packager.runtime.model_run import ModelRunner
from tests.graphs import graph_model
from tests.unit.packager_passes.models import cnn, constant, weight
from tests.unit.packager_passes.passing import context_of, copy_of, kinds_of

_TOKENS = np.array([[0, 4, 2, 5, -1, -5, -6, 900, 3]])
"""Of five: known ones, and ones beyond at either side."""


def _model(text: str, *constants: onnx.TensorProto) -> onnx.ModelProto:
    model = graph_model(text, constants)
    for node in model.graph.node:
        node.name = f"make_{node.output[0]}"
    onnx.checker.check_model(model)
    add_shapes(model)
    return model


def _optimized(model: onnx.ModelProto, folder: Path) -> PassResult:
    return optimize(copy_of(model), Optimize(), context_of(cnn(), folder))


def _run(model: onnx.ModelProto, tokens: npt.NDArray[np.generic], folder: Path) -> np.ndarray:
    (output,) = ModelRunner(model, folder / "run.onnx").run({"x": tokens}).values()
    return np.asarray(output)


def _compared(kind: str, rows: str, *, columns: object = (0, 1, 2, 3, 4)) -> onnx.ModelProto:
    """A token compared with each column."""
    dtype = np.int32 if kind == "int32" else np.int64
    return _model(
        f"({kind}[1,9] x) => (float[1,9,3] y) {{ t = Unsqueeze(x, last) e = Equal(c, t) "
        f"h = Cast<to = 1>(e) {rows} }}",
        constant("last", [2], np.int64),
        constant("c", columns, dtype),
        weight("w", 5, 3),
        weight("b", 3),
    )


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_a_comparison_with_every_column_times_rows_is_a_lookup(kind: str, tmp_path: Path) -> None:
    model = _compared(kind, "y = MatMul(h, w)")
    result = _optimized(model, tmp_path)
    kinds = kinds_of(result.model)
    assert "Gather" in kinds
    assert not {"Equal", "MatMul"} & set(kinds)
    tokens = _TOKENS.astype(kind)
    np.testing.assert_array_equal(
        _run(result.model, tokens, tmp_path), _run(model, tokens, tmp_path)
    )
    assert result.notes == ("make_y multiplies a one-hot matrix: a lookup gives the same.",)


def test_the_operator_of_that_name_counts_from_the_end_and_a_bias_stays(tmp_path: Path) -> None:
    model = _model(
        "(int64[9] x) => (float[9,3] y) { h = OneHot(x, n, v) m = MatMul(h, w) y = Add(m, b) }",
        constant("n", [5], np.int64),
        constant("v", [0, 1]),
        weight("w", 5, 3),
        weight("b", 3),
    )
    result = _optimized(model, tmp_path)
    assert "OneHot" not in kinds_of(result.model)
    tokens = _TOKENS[0]
    after = _run(result.model, tokens, tmp_path)
    np.testing.assert_array_equal(after, _run(model, tokens, tmp_path))
    np.testing.assert_array_equal(after[4], after[1], err_msg="-1 is the last of five")


@pytest.mark.parametrize(
    "model",
    [
        _compared("int64", "y = MatMul(h, w)", columns=(0, 1, 2, 3, 5)),
        _model(
            "(int64[1,9] x) => (float[1,9,3] y) { h = OneHot(x, n, v) y = MatMul(h, w) }",
            constant("n", [5], np.int64),
            constant("v", [0, 2]),
            weight("w", 5, 3),
        ),
        _model(
            "(int64[1,5] x) => (float[1,9,3] y) { h = OneHot<axis = 1>(x, n, v) y = MatMul(h, w) }",
            constant("n", [9], np.int64),
            constant("v", [0, 1]),
            weight("w", 5, 3),
        ),
    ],
    ids=["a gap", "twos", "another axis"],
)
def test_what_only_looks_like_one_stays(model: onnx.ModelProto, tmp_path: Path) -> None:
    result = _optimized(model, tmp_path)
    assert "MatMul" in kinds_of(result.model)
    assert result.notes == ()


def test_what_treats_each_row_by_itself_goes_into_the_table(tmp_path: Path) -> None:
    model = _model(
        "(int64[1,9] x) => (float[1,9,4] y) { e = Gather(table, x) h = Add(e, b) g = Tanh(h) "
        "s = Add(g, e) n = LayerNormalization<axis = -1>(s, scale) p = MatMul(n, w) "
        "y = Mul(p, along) }",
        weight("table", 6, 3),
        weight("b", 3),
        weight("scale", 3),
        weight("w", 3, 4),
        weight("along", 1, 9, 4),
    )
    result = _optimized(model, tmp_path)
    assert kinds_of(result.model) == ["Gather", "Mul"], "what differs by place is not a row's own"
    tokens = np.array([[0, 5, 2, 2, 1, 3, 4, 0, 5]])
    np.testing.assert_allclose(
        _run(result.model, tokens, tmp_path), _run(model, tokens, tmp_path), rtol=1e-5, atol=1e-6
    )
    assert result.notes == ("5 nodes behind a lookup went into its table.",)


def test_rows_that_are_read_at_two_places_go_as_far_as_one_table_holds_both(
    tmp_path: Path,
) -> None:
    model = _model(
        "(int64[1,9] x) => (float[1,9,3] y) { e = Gather(table, x) h = Add(e, b) "
        "a = Sigmoid(h) c = Tanh(h) s = Softmax<axis = 1>(a) y = Add(s, c) }",
        weight("table", 6, 3),
        weight("b", 3),
    )
    result = _optimized(model, tmp_path)
    assert kinds_of(result.model) == ["Gather", "Sigmoid", "Tanh", "Softmax", "Add"]
    tokens = np.array([[0, 5, 2, 2, 1, 3, 4, 0, 5]])
    np.testing.assert_allclose(
        _run(result.model, tokens, tmp_path), _run(model, tokens, tmp_path), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("width", "is_shared", "is_folded"),
    [(64, False, True), (96, False, False), (64, True, False)],
    ids=["as wide", "wider", "beside the old one"],
)
def test_a_large_table_neither_grows_nor_gets_a_second_one_beside_it(
    width: int, is_shared: bool, is_folded: bool, tmp_path: Path
) -> None:
    second = "n = Neg(x) f = Gather(table, n) s = Add(h, f)" if is_shared else "s = Neg(h)"
    model = _model(
        "(int64[1,4] x) => (float y) { e = Gather(table, x) h = MatMul(e, w) "
        f"{second} y = ReduceSum<keepdims = 0>(s) }}",
        weight("table", 2000, 64),
        weight("w", 64, width),
    )
    kinds = kinds_of(_optimized(model, tmp_path).model)
    assert ("MatMul" not in kinds) == is_folded


def test_an_output_of_the_model_behind_a_lookup_stays_one(tmp_path: Path) -> None:
    model = _model(
        "(int64[1,9] x) => (float[1,9,3] h, float[1,9,3] y) "
        "{ e = Gather(table, x) h = Add(e, b) y = Tanh(h) }",
        weight("table", 6, 3),
        weight("b", 3),
    )
    after = _optimized(model, tmp_path).model
    assert kinds_of(after) == ["Gather", "Tanh"]
    assert [value.name for value in after.graph.output] == ["h", "y"]
    (table,) = [numpy_helper.to_array(tensor) for tensor in after.graph.initializer]
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    np.testing.assert_array_equal(table, given["table"] + given["b"])
