"""Operators that a provider computes wrongly are written as others that compute the same."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.queries import index_graph
from edgepack.packager.passes.apply_workarounds import apply_workarounds
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.workarounds.table import WORKAROUNDS
from edgepack.packager.profiles.pass_settings import ApplyWorkarounds, WorkaroundOp
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import Limits
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_passes.models import make_model, parsed_model, samples_for, weight


def _context(folder: Path) -> PassContext:
    samples = Samples(count=0, read=lambda index: {}, source="none")
    return PassContext(
        profile_name="mine",
        limits=Limits(),
        samples=samples,
        work_dir=folder,
        provider="QNNExecutionProvider",
        simulator_version="2.7.0",
    )


def _two_reciprocals() -> onnx.ModelProto:
    return parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [first] once = Reciprocal(x) "
        "[add] sum = Add(once, x) [second] y = Reciprocal(sum) }"
    )


def test_a_reciprocal_becomes_a_quotient_with_the_same_value(tmp_path: Path) -> None:
    feeds: Outputs = {"x": np.array([[0.01, 0.5, 2.0, -3.0]], dtype=np.float32)}
    before = ModelRunner(_two_reciprocals(), tmp_path / "before.onnx").run(feeds)["y"]
    result = apply_workarounds(_two_reciprocals(), ApplyWorkarounds(), _context(tmp_path))
    assert [node.op_type for node in result.model.graph.node] == ["Div", "Add", "Div"]
    assert [tensor.name for tensor in result.model.graph.initializer] == ["edgepack/one/1"]
    assert result.notes == ("2 Reciprocal became Div, which the provider computes right.",)
    onnx.checker.check_model(result.model)
    after = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)["y"]
    assert np.allclose(after.astype(np.float64), before.astype(np.float64), rtol=1e-6)


def _gated(rows: int, *, gate_of: str = "c", swapped: bool = False) -> onnx.ModelProto:
    """A convolution of x (1, 3, rows, 5) times the Sigmoid of a tensor, and once more added."""
    shape = f"[1,3,{rows},5]"
    return parsed_model(
        f"(float{shape} x) => (float{shape} y) {{ [conv] c = Conv(x, w) [other] d = Conv(x, v) "
        f"[sigmoid] s = Sigmoid({gate_of}) [gate] g = Mul({'s, c' if swapped else 'c, s'}) "
        "[add] h = Add(g, c) [last] y = Add(h, d) }",
        [weight("w", 3, 3, 1, 1), weight("v", 3, 3, 1, 1, seed=1)],
    )


@pytest.mark.parametrize("rows", [9, 12])
@pytest.mark.parametrize("gate_of", ["c", "d"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_convolution_meets_a_sigmoid_apart_on_maps_of_some_sizes(
    rows: int, gate_of: str, swapped: bool, tmp_path: Path
) -> None:
    model = _gated(rows, gate_of=gate_of, swapped=swapped)
    [feeds] = samples_for(model, 1)
    before = ModelRunner(model, tmp_path / "before.onnx").run(feeds)["y"]
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    onnx.checker.check_model(result.model, full_check=True)
    apart, gate = (n for n in result.model.graph.node if n.op_type == "Mul")
    assert list(apart.input) == ["c", "edgepack/one/1"]
    assert set(gate.input) == {apart.output[0], "s"}
    assert result.notes[0].startswith("1 Sigmoid were set apart")
    after = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)["y"]
    assert np.array_equal(after, before)


@pytest.mark.parametrize(("rows", "gate_of"), [(8, "c"), (13, "c"), (10, "x")])
def test_what_the_provider_computes_rightly_is_left(
    rows: int, gate_of: str, tmp_path: Path
) -> None:
    model = _gated(rows, gate_of=gate_of)
    before = model.SerializeToString()
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    assert (result.model.SerializeToString(), result.notes) == (before, ())


def _one(op_type: str, shape: Sequence[int], after: Sequence[int], **how: Any) -> onnx.ModelProto:
    """One operator of x; `how` names its constants and its attributes."""
    constants = {name: value for name, value in how.items() if isinstance(value, np.ndarray)}
    inputs = how.pop("inputs", ["x", *constants])
    attributes = {name: value for name, value in how.items() if name not in constants}
    node = helper.make_node(op_type, inputs, ["y"], name="only", **attributes)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return make_model([node], {"x": shape}, {"y": after}, tensors)


def _resize(
    height: int, scales: Sequence[float], mode: str = "nearest", **how: str
) -> onnx.ModelProto:
    after = (1, 2, int(height * scales[0]), int(6 * scales[1]))
    given = np.array([1, 1, *scales], dtype=np.float32)
    inputs = ["x", "", "scales"]
    return _one("Resize", (1, 2, height, 6), after, inputs=inputs, scales=given, mode=mode, **how)


def _compare(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The types of a model's nodes as it is spelled out; its outputs are what they were."""
    [feeds] = samples_for(model, 1)
    before = ModelRunner(model, folder / "before.onnx").run(feeds)["y"]
    result = apply_workarounds(model, ApplyWorkarounds(), _context(folder))
    onnx.checker.check_model(result.model, full_check=True)
    after = ModelRunner(result.model, folder / "after.onnx").run(feeds)["y"]
    assert np.allclose(after.astype(np.float64), before.astype(np.float64), rtol=1e-5, atol=1e-6)
    return [node.op_type for node in result.model.graph.node]


_WAYS = [
    {"coordinate_transformation_mode": transformation, "nearest_mode": rounding}
    for transformation in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
]


@pytest.mark.parametrize("way", _WAYS, ids=lambda way: " ".join(way.values()))
@pytest.mark.parametrize("scales", [(1.5, 2.0), (0.4, 0.5)])
def test_a_nearest_resize_takes_the_rows_and_columns_that_it_took(
    way: dict[str, str], scales: tuple[float, float], tmp_path: Path
) -> None:
    model = _resize(7, scales, **way)
    assert set(_compare(model, tmp_path)) <= {"Resize", "Gather"}
    for node in model.graph.node:
        if node.op_type == "Resize":
            how = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
            assert how["coordinate_transformation_mode"] == b"asymmetric"
            assert how["nearest_mode"] == b"floor"


def test_a_nearest_resize_stays_one_where_whole_factors_take_the_same(tmp_path: Path) -> None:
    pixels = {
        "coordinate_transformation_mode": "half_pixel",
        "nearest_mode": "round_prefer_floor",
    }
    assert _compare(_resize(7, (2.0, 3.0), **pixels), tmp_path) == ["Resize"]
    pixels["nearest_mode"] = "floor"
    assert _compare(_resize(7, (2.0, 1.0), **pixels), tmp_path) == ["Gather"]


@pytest.mark.parametrize("how", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(0.5, 1.5), (1.25, 1.0), (0.4, 0.75), (0.3, 2.0)])
def test_a_linear_resize_to_sizes_that_are_not_whole_is_cut_from_one_to_whole_sizes(
    scales: tuple[float, float], how: str, tmp_path: Path
) -> None:
    model = _resize(13, scales, "linear", coordinate_transformation_mode=how)
    assert _compare(model, tmp_path) == ["Pad", "Resize", "Slice"]
    resized = next(n.output[0] for n in model.graph.node if n.op_type == "Resize")
    shapes = index_graph(model.graph).shapes
    whole = [
        (size or 0) * scale for size, scale in zip(shapes["only/repeated"][2:], scales, strict=True)
    ]
    assert np.allclose(whole, np.array(shapes[resized][2:], dtype=np.float64), atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "after", "how", "types"),
    [
        ((1, 2, 8, 8), (1, 2, 4, 4), {"strides": [2, 2], "ceil_mode": 1}, ["AveragePool"]),
        ((1, 1, 5, 6), (1, 1, 5, 6), {"pads": [1, 1, 1, 1]}, ["AveragePool", "Mul"]),
        ((1, 4, 1, 6), (1, 4, 1, 6), {"pads": [1, 1, 1, 1]}, ["AveragePool", "Mul"]),
        (
            (1, 2, 8, 8),
            (1, 2, 5, 5),
            {"strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1], "count_include_pad": 1},
            ["AveragePool", "Mul"],
        ),
        ((1, 2, 9, 9), (1, 2, 9, 9), {"pads": [2, 2, 0, 0]}, ["AveragePool", "Mul"]),
    ],
)
def test_an_average_over_padding_is_the_same_with_padding_that_is_written_out(
    shape: Sequence[int],
    after: Sequence[int],
    how: dict[str, Any],
    types: list[str],
    tmp_path: Path,
) -> None:
    model = _one("AveragePool", shape, after, kernel_shape=[3, 3], **how)
    before = model.SerializeToString()
    [feeds] = samples_for(model, 1)
    wanted = ModelRunner(model, tmp_path / "before.onnx").run(feeds)["y"]
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    assert result.model.SerializeToString() != before
    assert [node.op_type for node in result.model.graph.node] == types
    assert result.notes == (
        "1 AveragePool have padding written out that the provider counts wrongly.",
    )
    onnx.checker.check_model(result.model, full_check=True)
    got = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)["y"]
    assert np.allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "shape", "how", "types"),
    [
        ("Tanh", (1, 16, 3), {}, ["Reshape", "Tanh", "Reshape"]),
        ("Tanh", (16, 3), {}, ["Reshape", "Tanh", "Reshape"]),
        ("CumSum", (1, 4, 3), {"axis": np.array(1)}, ["Transpose", "CumSum", "Transpose"]),
        (
            "Pow",
            (1, 4, 3),
            {"base": np.array([[2.0], [0.5], [1.0], [3.0]], np.float32), "inputs": ["base", "x"]},
            ["Mul", "Exp"],
        ),
    ],
)
def test_other_operators_give_the_same_otherwise(
    op_type: str, shape: Sequence[int], how: dict[str, Any], types: list[str], tmp_path: Path
) -> None:
    assert _compare(_one(op_type, shape, shape, **how), tmp_path) == types


def test_a_softplus_of_a_convolution_is_taken_of_one_row_on_maps_of_some_sizes(
    tmp_path: Path,
) -> None:
    def model(rows: int) -> onnx.ModelProto:
        shape = (1, 3, rows, 5)
        return parsed_model(
            f"(float{list(shape)} x) => (float{list(shape)} y) {{ [conv] c = Conv(x, w) "
            "[softplus] y = Softplus(c) }",
            [weight("w", 3, 3, 1, 1)],
        )

    assert _compare(model(10), tmp_path) == ["Conv", "Reshape", "Softplus", "Reshape"]
    left = apply_workarounds(model(13), ApplyWorkarounds(), _context(tmp_path))
    assert ([node.op_type for node in left.model.graph.node], left.notes) == (
        ["Conv", "Softplus"],
        (),
    )


def _padded(mode: str, *inputs: str) -> onnx.ModelProto:
    node = helper.make_node("Pad", ["x", "pads", *inputs], ["y"], name="pad", mode=mode)
    pads = numpy_helper.from_array(np.array([1, 2]), "pads")
    constants = [
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
        numpy_helper.from_array(np.array([1]), "axes"),
    ]
    used = [tensor for tensor in constants if tensor.name in inputs]
    return make_model([node], {"x": [1, 4]}, {"y": [1, 7]}, [pads, *used], opset=18)


def test_a_pad_names_its_zero_with_or_without_axes(tmp_path: Path) -> None:
    assert _compare(_padded("constant", "", "axes"), tmp_path) == ["Pad"]
    model = apply_workarounds(
        _padded("constant", "", "axes"), ApplyWorkarounds(), _context(tmp_path)
    ).model
    assert list(model.graph.node[0].input) == ["x", "pads", "edgepack/zero", "axes"]


def _lookup(*, width: int = 4, axis: int = 0, is_computed: bool = True) -> onnx.ModelProto:
    """Two lookups in one table (6, width) by 3 indices, which are inputs or computed of those."""
    indices = "j" if is_computed else "i"
    row = [3, width] if axis == 0 else [6, 3]
    model = parsed_model(
        f"(float[3] i) => (float{list(row)} y, float[3] read) {{ [turned] j = Sub(five, i) "
        f"[once] once = Gather<axis={axis}>(table, {indices}) "
        f"[again] again = Gather<axis={axis}>(table, {indices}) [both] y = Add(once, again) "
        '["reads-j"] read = Neg(j) }',
        [weight("table", 6, width), numpy_helper.from_array(np.array(5, np.int64), "five")],
    )
    for value in (model.graph.input[0], model.graph.output[1]):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT64
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def test_a_narrow_table_read_by_computed_indices_stands_twice(tmp_path: Path) -> None:
    model = _lookup()
    feeds: Outputs = {"i": np.array([0, 7, 10])}  # rows 5, -2 and -5
    before = ModelRunner(model, tmp_path / "before.onnx").run(feeds)
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    tables = {tensor.name: list(tensor.dims) for tensor in result.model.graph.initializer}
    assert tables == {"five": [], "table/longer": [12, 4]}
    assert result.notes == (
        "2 Gather read a table that stands twice: the provider reads its last row wrongly.",
    )
    onnx.checker.check_model(result.model, full_check=True)
    after = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)
    np.testing.assert_array_equal(after["y"], before["y"])


@pytest.mark.parametrize(
    "model",
    [
        _padded("edge", "", "axes"),
        _padded("constant", "half", "axes"),
        _lookup(width=17),
        _lookup(axis=1),
        _lookup(is_computed=False),
        _resize(7, (2.0, 3.0), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        _resize(12, (0.5, 1.5), "linear"),
        _resize(13, (0.5, 1.5), "linear", coordinate_transformation_mode="align_corners"),
        _resize(13, (0.31, 1.0), "linear"),
        _one("AveragePool", (1, 2, 9, 9), (1, 2, 9, 9), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        _one("AveragePool", (1, 2, 9, 9), (1, 2, 4, 4), kernel_shape=[3, 3], strides=[2, 2]),
        _one("Tanh", (1, 17, 3), (1, 17, 3)),
        _one("Tanh", (2, 16, 3), (2, 16, 3)),
        _one("CumSum", (1, 4, 3), (1, 4, 3), axis=np.array(-1)),
        _one("Pow", (1, 3), (1, 3), exponent=np.array(2.0, np.float32)),
    ],
    ids=lambda model: str(model.graph.node[0].op_type),
)
def test_what_was_seen_to_be_right_is_left(model: onnx.ModelProto, tmp_path: Path) -> None:
    before = model.SerializeToString()
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    assert (result.model.SerializeToString(), result.notes) == (before, ())


def test_a_model_without_them_is_left_as_it_is(tmp_path: Path) -> None:
    model = parsed_model("(float[1] x) => (float[1] y) { [neg] y = Neg(x) }")
    before = model.SerializeToString()
    result = apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    assert (result.model.SerializeToString(), result.notes) == (before, ())


def test_without_inferred_types_it_says_which_pass_must_come_first(tmp_path: Path) -> None:
    model = _two_reciprocals()
    del model.graph.value_info[:]
    with pytest.raises(BuildError, match="the type of 'sum' is not known") as refused:
        apply_workarounds(model, ApplyWorkarounds(), _context(tmp_path))
    assert refused.value.remedy == "put the pass after infer_shapes"


@pytest.mark.parametrize(
    ("settings", "provider", "release", "is_rewritten"),
    [
        (ApplyWorkarounds(), "QNNExecutionProvider", "2.7.0", True),
        (ApplyWorkarounds(), "QNNExecutionProvider", "2.8.0", False),
        (ApplyWorkarounds(), "QNNExecutionProvider", "", False),
        (ApplyWorkarounds(on_chips=True), "QNNExecutionProvider", "2.8.0", True),
        (ApplyWorkarounds(on_chips=True), "QNNExecutionProvider", "", True),
        (ApplyWorkarounds(ops=("Pow",)), "QNNExecutionProvider", "2.7.0", False),
        (ApplyWorkarounds(ops=()), "QNNExecutionProvider", "2.7.0", False),
        (ApplyWorkarounds(), "OpenVINOExecutionProvider", "2.7.0", False),
        (ApplyWorkarounds(on_chips=True), "OpenVINOExecutionProvider", "2.7.0", False),
    ],
)
def test_workarounds_obey_the_profile_and_the_releases_of_the_simulator(
    settings: ApplyWorkarounds, provider: str, release: str, is_rewritten: bool, tmp_path: Path
) -> None:
    context = replace(_context(tmp_path), provider=provider, simulator_version=release)
    result = apply_workarounds(_two_reciprocals(), settings, context)
    assert bool(result.notes) == is_rewritten
    assert ("Div" in [node.op_type for node in result.model.graph.node]) == is_rewritten


def test_every_operator_that_a_profile_may_name_has_a_row_and_none_has_another_name() -> None:
    assert tuple(dict.fromkeys(row.op for row in WORKAROUNDS)) == get_args(WorkaroundOp)


def test_every_row_names_a_test_that_fails_when_it_is_no_longer_needed() -> None:
    root = Path(__file__).parents[3]
    files = {row.test.partition("::")[0] for row in WORKAROUNDS}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    collected = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    assert {row.test for row in WORKAROUNDS} <= set(collected.stdout.splitlines())


@pytest.mark.parametrize("name", ["qnn-htp", "qnn-htp-a8w8", "qnn-htp-v73"])
def test_profiles_for_qnn_have_it(name: str) -> None:
    assert ApplyWorkarounds() in load_profile(name).passes
