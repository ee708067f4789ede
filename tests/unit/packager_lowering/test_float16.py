"""16-bit floats: where they are, where they are not, and what they really compute."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.profiles.pass_settings import Float16
from edgepack.packager.progress import silent
from edgepack.packager.quantization.float16.candidate_maker import Float16CandidateMaker
from edgepack.packager.quantization.float16.plan import constant_fits
from edgepack.packager.runtime.float16_rounding import open_rounding
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    attention,
    cnn,
    constant,
    parsed_model,
    samples_for,
    weight,
)


def _maker(
    model: onnx.ModelProto, folder: Path, *, scale: float = 1.0, **settings: Any
) -> Float16CandidateMaker:
    given = samples_for(model, 4)
    samples = Samples(
        count=4,
        read=lambda index: {
            name: np.multiply(value, scale, dtype=np.float32)
            for name, value in given.read(index).items()
        },
        source="made",
    )
    return Float16CandidateMaker(
        model, Float16(**settings), samples, work_dir=folder, progress=silent
    )


def _types(model: onnx.ModelProto) -> dict[str, int]:
    return {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}


@pytest.mark.parametrize("make", [cnn, lambda: attention(mask_value=-64.0)])
def test_the_whole_graph_is_16_bit_with_one_conversion_at_each_end(
    make: Any, tmp_path: Path
) -> None:
    model = make()
    maker = _maker(model, tmp_path)
    built = maker.build(spec("float16"))
    onnx.checker.check_model(built.model, full_check=True)
    assert built.lowered == maker.names
    assert Counter(node.op_type for node in built.model.graph.node)["Cast"] == 2
    assert {tensor.data_type for tensor in built.model.graph.initializer} <= {
        TensorProto.FLOAT16,
        TensorProto.INT64,
    }
    for before, after in zip(
        (*model.graph.input, *model.graph.output),
        (*built.model.graph.input, *built.model.graph.output),
        strict=True,
    ):
        assert before == after
    feeds = samples_for(model, 1).read(0)
    wanted = ModelRunner(model, tmp_path / "float.onnx").run(feeds)
    got = ModelRunner(built.model, tmp_path / "half.onnx").run(feeds)
    assert largest_difference([wanted], [got]) < 1e-2


def _square() -> onnx.ModelProto:
    """x (4) to x * x / 1000, whose middle overflows for x = 1000."""
    return parsed_model(
        "(float[4] x) => (float[4] y) { [square] squared = Mul(x, x) "
        "[shrink] z = Div(squared, thousand) [relu] y = Relu(z) }",
        [constant("thousand", 1000.0)],
    )


def test_what_overflows_on_the_samples_stays_32_bit_and_so_do_its_readers(tmp_path: Path) -> None:
    assert _maker(_square(), tmp_path).names == ("square", "shrink", "relu")
    large = _maker(_square(), tmp_path, scale=1000.0)
    assert large.names == ("relu",)
    built = large.build(spec("float16")).model
    assert _types(built)["squared"] == TensorProto.FLOAT


def test_the_stand_in_overflows_where_a_16_bit_device_does_and_plain_cpu_does_not(
    tmp_path: Path,
) -> None:
    built = _maker(_square(), tmp_path).build(spec("float16")).model
    feeds: Feeds = {"x": np.array([1.0, 2.0, 3.0, 1000.0], dtype=np.float32)}
    assert ModelRunner(built, tmp_path / "plain.onnx").run(feeds)["y"][3] == 1000.0
    save_model(built, tmp_path / "half.onnx")
    rounded = open_rounding(tmp_path / "half.onnx")(feeds)["y"]
    assert rounded[3] == np.inf
    left = sorted(file.name for file in tmp_path.iterdir())
    assert "half.onnx" in left, left
    assert not [name for name in left if name.startswith("tmp") or "rounding" in name], left
    assert rounded[1] == np.float32(np.float16(4.0) / np.float16(1000.0))


def test_a_guard_against_zero_that_16_bits_would_lose_keeps_its_node_32_bit(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[4] x) => (float[4] y) { [guarded] safe = Add(x, guard) [relu] y = Relu(safe) }",
        [constant("guard", 1e-12)],
    )
    assert _maker(model, tmp_path).names == ("relu",)


def test_constants_fit_by_their_values() -> None:
    assert constant_fits(np.array([-np.inf, 1.0, 1e-9], dtype=np.float32))
    assert constant_fits(np.array(0.0, dtype=np.float32))
    assert constant_fits(np.array(1e-6, dtype=np.float32))
    assert not constant_fits(np.array(1e-12, dtype=np.float32))
    assert not constant_fits(np.array([1.0, -3.4e38], dtype=np.float32))
    assert not constant_fits(np.array([1e-6, 2e-6], dtype=np.float32))


def test_moving_data_between_32_bit_nodes_needs_no_conversion(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[4,8] x) => (float[8,8] y) { [first] a = MatMul(x, w) "
        "[turn] b = Transpose<perm=[1,0]>(a) [second] y = MatMul(b, v) }",
        [weight("w", 8, 8), weight("v", 4, 8)],
    )
    built = _maker(model, tmp_path).build(spec("float16", ("first", "second")))
    assert built.lowered == ()
    assert [entry.op_type for entry in built.model.graph.node] == ["MatMul", "Transpose", "MatMul"]


def test_bodies_of_control_flow_and_tensors_that_they_read_stay_32_bit(tmp_path: Path) -> None:
    def body(name: str, kind: str) -> str:
        return f"{name} () => (float[4] {name}) {{ {name} = {kind}(r) }}"

    model = parsed_model(
        "(float[4] x) => (float[4] y) { [double] r = Mul(x, two) "
        f"[if] chosen = If<then_branch = {body('then', 'Relu')}, "
        f"else_branch = {body('else', 'Neg')}>(yes) [add] y = Add(chosen, r) }}",
        [constant("two", 2.0), constant("yes", True, np.bool_)],
    )
    add_shapes(model)
    built = _maker(model, tmp_path).build(spec("float16")).model
    onnx.checker.check_model(built, full_check=True)
    feeds: Feeds = {"x": np.array([-1.0, 0.5, 2.0, 3.0], dtype=np.float32)}
    got = ModelRunner(built, tmp_path / "half.onnx").run(feeds)["y"]
    np.testing.assert_array_equal(got, [-2.0, 2.0, 8.0, 12.0])


def test_names_that_are_taken_are_not_made_again(tmp_path: Path) -> None:
    model = parsed_model(
        '(float[4] x) => (float[4] y) { [a] "x/float16" = Relu(x) [b] y = Add(x, "x/float16") }'
    )
    built = _maker(model, tmp_path).build(spec("float16")).model
    made = [name for entry in built.graph.node for name in entry.output]
    assert len(made) == len(set(made))
    ModelRunner(built, tmp_path / "half.onnx").run(samples_for(model, 1).read(0))
