"""Weights of few bits: what ONNX Runtime computes with them, and what each method is for."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.profiles.pass_settings import QuantizeWeights
from edgepack.packager.progress import silent
from edgepack.packager.quantization.gptq import Moments, round_by_gptq
from edgepack.packager.quantization.products import find_products
from edgepack.packager.quantization.weight_only.blocks import (
    BlockGrid,
    BlockWeight,
    fit_scales,
    make_grid,
    refine_grid,
    round_to_nearest,
    with_half_scales,
)
from edgepack.packager.quantization.weight_only.candidate_maker import WeightOnlyCandidateMaker
from edgepack.packager.quantization.weight_only.moments import measure_moments, parts_that_fit
from edgepack.packager.quantization.weight_only.unfold import unfold_weights
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Singles
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import constant, make_model, parsed_model, weight

_INPUTS = 72
"""No multiple of any block size but 8."""


def _furthest(got: Any, wanted: Any) -> float:
    assert got.shape == wanted.shape, f"{got.shape} in place of {wanted.shape}"
    return float(np.max(np.abs(got - wanted)))


def _floats(tensor: onnx.TensorProto) -> Singles:
    return numpy_helper.to_array(tensor).astype(np.float32)


def _samples(count: int = 16) -> Samples:
    """Rows whose elements go together, as activations do: only then errors can be made up for."""
    rng = np.random.default_rng(3)
    mixing = rng.normal(0, 1, (8, _INPUTS)).astype(np.float32)
    rows = [rng.normal(0, 1, (24, 8)).astype(np.float32) @ mixing for _ in range(count)]
    return Samples(count=count, read=lambda index: {"x": rows[index]}, source="made")


def _by_gptq(matrix: Singles, grid: BlockGrid, moments: Moments) -> BlockWeight:
    codes = round_by_gptq(matrix[None], grid, moments[None])[0]
    return BlockWeight(codes=codes.astype(np.uint8), grid=grid)


def _products() -> onnx.ModelProto:
    return parsed_model(
        f"(float[24,{_INPUTS}] x) => (float[24,48] y) {{ [first] a = MatMul(x, w1) "
        "[relu] r = Relu(a) [last] y = Gemm<transB=1, alpha=0.5>(r, w2, b2) }",
        [weight("w1", _INPUTS, 50), weight("w2", 48, 50, seed=2), weight("b2", 48)],
    )


def _maker(model: onnx.ModelProto, folder: Path, **settings: Any) -> WeightOnlyCandidateMaker:
    return WeightOnlyCandidateMaker(
        model, QuantizeWeights(**settings), _samples(), work_dir=folder, progress=silent
    )


def _restored(model: onnx.ModelProto, settings: QuantizeWeights) -> onnx.ModelProto:
    """The float model with weights rounded to nearest and written out in full."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    index = index_graph(model.graph)
    for product in find_products(index):
        matrix = product.matrix(index)
        grid = make_grid(
            matrix,
            bits=settings.bits,
            block_size=settings.block_size,
            symmetric=settings.symmetric,
        )
        rounded = round_to_nearest(matrix, grid).restore() / product.factor
        for tensor in result.graph.initializer:
            if tensor.name == product.weight:
                values = rounded if product.is_transposed else rounded.T
                tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    return result


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_computes_with_the_weights_that_the_codes_stand_for(
    bits: int, block_size: int, symmetric: bool, tmp_path: Path
) -> None:
    model = _products()
    settings: dict[str, Any] = {"bits": bits, "block_size": block_size, "symmetric": symmetric}
    built = _maker(model, tmp_path, methods=("rtn",), **settings).build(spec("rtn"))
    assert built.lowered == ("first", "last")
    assert [node.op_type for node in built.model.graph.node if node.name in built.lowered] == [
        "MatMulNBits",
        "MatMulNBits",
    ]
    wanted = ModelRunner(_restored(model, QuantizeWeights(**settings)), tmp_path / "wanted.onnx")
    got = ModelRunner(built.model, tmp_path / "got.onnx")
    feeds = _samples().read(0)
    assert _furthest(got.run(feeds)["y"], wanted.run(feeds)["y"]) < 1e-4


@pytest.mark.parametrize("bits", [4, 8])
def test_tables_are_gathered_from_codes(bits: int, tmp_path: Path) -> None:
    model = parsed_model(
        "() => (float[3,40] y) { [lookup] y = Gather(table, rows) }",
        [weight("table", 90, 40), constant("rows", [5, 0, 89], np.int64)],
    )
    built = _maker(model, tmp_path, bits=bits).build(spec("rtn"))
    (node,) = built.model.graph.node
    assert node.op_type == "GatherBlockQuantized"
    table = _floats(model.graph.initializer[0])
    grid = make_grid(table, bits=bits, block_size=32, symmetric=False)
    got = ModelRunner(built.model, tmp_path / "got.onnx").run({})["y"]
    assert _furthest(got, round_to_nearest(table, grid).restore()[[5, 0, 89]]) < 1e-5
    assert _maker(model, tmp_path, embeddings=False).names == ()


def _tied(*, is_twice: bool) -> onnx.ModelProto:
    """Return a table that also scores rows: one weight, or one that an optimizer wrote twice."""
    node = helper.make_node
    table = weight("table", 90, 64)
    turned = np.ascontiguousarray(numpy_helper.to_array(table).T)
    rows = numpy_helper.from_array(np.array([[5, 0, 89]]), "rows")
    scores = (
        [node("MatMul", ["found", "turned"], ["y"], name="head")]
        if is_twice
        else [
            node("Flatten", ["found"], ["flat"], axis=2),
            node("Gemm", ["flat", "table"], ["y"], name="head", transB=1),
        ]
    )
    return make_model(
        [node("Gather", ["table", "rows"], ["found"], name="lookup"), *scores],
        {},
        {"y": [1, 3, 90] if is_twice else [3, 90]},
        [table, rows, *([numpy_helper.from_array(turned, "turned")] if is_twice else [])],
    )


@pytest.mark.parametrize("scale_bits", [16, 32])
@pytest.mark.parametrize("is_twice", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_table_that_a_product_reads_too_is_stored_once(
    bits: int, is_twice: bool, scale_bits: int, tmp_path: Path
) -> None:
    model = _tied(is_twice=is_twice)
    maker = _maker(model, tmp_path, bits=bits, scale_bits=scale_bits)
    assert maker.names == ("head",)
    built = maker.build(spec("rtn"))
    stored = sum(tensor.ByteSize() for tensor in built.model.graph.initializer)
    assert stored < 90 * 64 * bits / 8 + 90 * 2 * scale_bits / 8 + 400
    table = _floats(model.graph.initializer[0])
    grid = make_grid(table, bits=bits, block_size=32, symmetric=True)
    if scale_bits == 16:
        grid = with_half_scales(grid)
    restored = round_to_nearest(table, grid).restore()
    got = ModelRunner(built.model, tmp_path / "got.onnx").run({})["y"].reshape(3, 90)
    assert _furthest(got, restored[[5, 0, 89]] @ restored.T) < 1e-3


def test_a_tied_table_stays_float_with_its_product(tmp_path: Path) -> None:
    maker = _maker(_tied(is_twice=False), tmp_path)
    built = maker.build(spec("rtn", float_nodes=("head",)))
    assert [node.op_type for node in built.model.graph.node] == ["Gather", "Flatten", "Gemm"]


def test_products_with_scales_of_16_bits_unfold_to_floats(tmp_path: Path) -> None:
    maker = _maker(_products(), tmp_path, methods=("rtn",), scale_bits=16)
    built = maker.build(spec("rtn")).model
    floats = unfold_weights(built)
    assert floats is not None
    wanted = ModelRunner(built, tmp_path / "built.onnx").run(_samples().read(0))["y"]
    got = ModelRunner(floats, tmp_path / "floats.onnx").run(_samples().read(0))["y"]
    assert _furthest(got, wanted) < 1e-3


def test_half_scales_keep_their_sign_and_are_never_zero() -> None:
    grid = make_grid(_weight_rows(), bits=4, block_size=32, symmetric=True)
    tiny = BlockGrid(
        scales=np.array([[1e-12, -1e-12, 1e9]], np.float32),
        zero_points=np.full((1, 3), 8, np.uint8),
        bits=4,
        block_size=32,
    )
    halves = with_half_scales(tiny).scales[0]
    assert halves[0] > 0.0 > halves[1]
    assert np.isfinite(halves).all()
    assert np.allclose(with_half_scales(grid).scales, grid.scales, rtol=1e-3)


def test_fitted_scales_never_cost_more_and_mostly_less() -> None:
    rows = _weight_rows()
    importance: Any = np.random.default_rng(2).uniform(0.1, 4.0, rows.shape[1])

    def errors(grid: BlockGrid) -> Any:
        return (np.square(rows - round_to_nearest(rows, grid).restore()) * importance).sum(axis=1)

    for symmetric in (False, True):
        plain = make_grid(rows, bits=4, block_size=32, symmetric=symmetric)
        before, after = errors(plain), errors(fit_scales(rows, plain, importance))
        assert (after <= before * 1.0001).all()
        assert after.sum() < 0.9 * before.sum()


def _weight_rows() -> Singles:
    return np.random.default_rng(5).standard_t(5, (40, 96)).astype(np.float32)


def test_every_weight_is_within_half_a_step_of_what_it_was() -> None:
    matrix = _floats(weight("w", 20, _INPUTS))
    for symmetric in (False, True):
        grid = make_grid(matrix, bits=4, block_size=16, symmetric=symmetric)
        error = np.abs(round_to_nearest(matrix, grid).restore() - matrix)
        steps = np.repeat(np.abs(grid.scales), 16, axis=1)[:, :_INPUTS]
        # The symmetric grid ends one step earlier on the side without the largest weight.
        assert (error <= steps * (1.0 if symmetric else 0.5) * 1.001).all()


def test_zeros_and_blocks_of_zeros_stay_exactly_zero() -> None:
    matrix = _floats(weight("w", 6, 64)).copy()
    matrix[:, 32:] = 0.0
    matrix[:, 3] = 0.0
    for symmetric in (False, True):
        grid = make_grid(matrix, bits=4, block_size=32, symmetric=symmetric)
        restored = round_to_nearest(matrix, grid).restore()
        assert (restored[matrix == 0.0] == 0.0).all()


def test_half_quadratic_grids_never_cost_more_in_their_own_norm_and_mostly_less() -> None:
    rng = np.random.default_rng(5)
    matrix = rng.standard_t(3, (64, 128)).astype(np.float32)
    plain = make_grid(matrix, bits=4, block_size=32, symmetric=False)
    refined = refine_grid(matrix, plain)

    def norms(grid: BlockGrid) -> Any:
        error = np.abs(round_to_nearest(matrix, grid).restore() - matrix)
        return (error**0.7).reshape(64, 4, 32).sum(axis=-1)

    assert (norms(refined) <= norms(plain) * 1.001).all()
    assert norms(refined).sum() < 0.99 * norms(plain).sum()


def test_gptq_makes_the_products_on_the_samples_better_than_rounding_does(
    tmp_path: Path,
) -> None:
    model = _products()
    index = index_graph(model.graph)
    first = next(iter(find_products(index)))
    matrix = first.matrix(index)
    samples = _samples()
    moments = measure_moments(model, {"x": _INPUTS}, samples, work_dir=tmp_path, progress=silent)[
        "x"
    ]
    rows = np.concatenate([feeds["x"] for feeds in samples])
    np.testing.assert_allclose(moments, rows.T @ rows, rtol=1e-3, atol=1e-2)
    grid = make_grid(matrix, bits=4, block_size=32, symmetric=False)

    def error(restored: Singles) -> float:
        return float(np.linalg.norm(rows @ (restored - matrix).T))

    nearest = error(round_to_nearest(matrix, grid).restore())
    assert error(_by_gptq(matrix, grid, moments).restore()) < 0.5 * nearest


def test_inputs_that_never_carry_anything_do_not_stop_gptq() -> None:
    matrix = _floats(weight("w", 8, 32))
    grid = make_grid(matrix, bits=4, block_size=16, symmetric=False)
    silent_inputs = np.zeros((32, 32))
    got = _by_gptq(matrix, grid, silent_inputs)
    np.testing.assert_array_equal(got.codes, round_to_nearest(matrix, grid).codes)


def test_moments_are_taken_in_parts_that_fit() -> None:
    widths = {"a": 10, "b": 10, "c": 100, "d": 10}
    assert parts_that_fit(widths, most_bytes=1600) == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize("method", ["rtn", "hqq", "gptq"])
def test_nodes_return_to_float_and_bytes_are_the_same_twice(method: str, tmp_path: Path) -> None:
    model = _products()
    built = _maker(model, tmp_path).build(spec(method, ("last",)))
    assert built.lowered == ("first",)
    assert {node.name: node.op_type for node in built.model.graph.node} == {
        "first": "MatMulNBits",
        "relu": "Relu",
        "last": "Gemm",
    }
    again = _maker(model, tmp_path / "again").build(spec(method, ("last",)))
    assert built.model.SerializeToString(deterministic=True) == again.model.SerializeToString(
        deterministic=True
    )


def test_ranking_measures_each_node_alone(tmp_path: Path) -> None:
    model = _products()
    ranked = _maker(model, tmp_path).rank(spec("rtn"), _samples(2), silent)
    assert {cost.name for cost in ranked} == {"first", "last"}
    assert ranked[0].noise >= ranked[1].noise > 0.0


def test_ranking_computes_with_scales_of_16_bits(tmp_path: Path) -> None:
    """ONNX Runtime gives zeros where it may not fold the Cast of scales."""
    settings: dict[str, Any] = {"methods": ("rtn",), "accuracy_level": 4}
    costs = [
        {node.name: node.noise for node in maker.rank(spec("rtn"), _samples(), silent)}
        for maker in (
            _maker(_products(), tmp_path, scale_bits=16, **settings),
            _maker(_products(), tmp_path, scale_bits=32, **settings),
        )
    ]
    assert costs[0] == pytest.approx(costs[1], rel=0.05)


def test_small_weights_and_products_of_two_activations_stay_float(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[4,8] x, float[8,4] y) => (float[4,4] a, float[4,4] b) { "
        "[small] a = MatMul(x, small) [dynamic] b = MatMul(x, y) }",
        [weight("small", 8, 4)],
    )
    assert _maker(model, tmp_path).names == ()
