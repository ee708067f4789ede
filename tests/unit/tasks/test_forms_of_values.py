"""Check forms that values have beside their variance: lengths, peaks, residuals, shares."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import (
    OutputDeclaration,
    check_outputs,
    declared_keys,
    declared_parts,
)
from edgepack.packager.source.model import load_source
from edgepack.packager.tasks.declared_values import check_probabilities, check_tolerances
from edgepack.packager.tasks.reconstruction import with_residuals
from edgepack.packager.tasks.scores import find_shares
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Bools, Floats, Outputs, Tensor
from edgepack.tasks.contract import Agreement
from edgepack.tasks.cross_check import find_doubt
from edgepack.tasks.description import ModelDescription, Source, TaskOutputs
from edgepack.tasks.doubts.case import Case
from edgepack.tasks.table import TASKS
from tests.graphs import graph_model

_COUNT = 24
_RNG = np.random.default_rng(0)


def _measure(
    part: TaskOutputs, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Agreement, str]:
    """Return the agreement of one output, and why it says little."""
    wanted, given = [{"y": value} for value in expected], [{"y": value} for value in got]
    agreement = TASKS[part.task].open(part, wanted).measure(given)
    doubt = find_doubt(Case(part, agreement, wanted, given))
    if doubt is None:
        return agreement, ""
    return agreement, f"{doubt.because} ({' or '.join(doubt.remedies)})"


def _part(task: str) -> TaskOutputs:
    source: Source = "unknown" if task == "unknown" else "declared"
    return TaskOutputs(task=task, outputs=("y",), source=source)


def _kept(agreement: Agreement, metric: str) -> float:
    return next(measure.kept for measure in agreement.measures if measure.metric == metric)


@pytest.mark.parametrize("task", ["unknown", "values"])
def test_narrow_vectors_of_one_length_keep_it(task: str) -> None:
    vectors = _RNG.normal(0, 1, (_COUNT, 1, 4))
    unit = list(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
    longer = [value * (1.003 if place % 2 else 0.997) for place, value in enumerate(unit)]
    found, _ = _measure(_part(task), unit, longer)
    assert _kept(found, "unit_length") == pytest.approx(0.97, abs=1e-4)
    free, _ = _measure(_part(task), list(vectors), list(vectors * 1.003))
    assert "unit_length" not in {measure.metric for measure in free.measures}


@pytest.mark.parametrize("task", ["unknown", "values", "embedding"])
def test_lengths_of_vectors_that_are_compared_count_by_the_neighbours_that_they_exchange(
    task: str,
) -> None:
    rng = np.random.default_rng(2)
    objects = np.repeat(rng.normal(0, 1, (30, 1, 32)), 2, axis=0)
    vectors = objects + rng.normal(0, 1.1, (60, 1, 32))
    unit = list(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
    step = float(np.abs(unit).max()) / 127
    eight_bits = [np.round(value / step) * step for value in unit]
    assert 0.0005 < np.std([np.linalg.norm(value) for value in eight_bits]) < 0.002
    assert _nearest(eight_bits) == _nearest(unit)
    assert _measure(_part(task), unit, eight_bits)[0].value > 0.99
    uneven = [value * (1 + rng.normal(0, 0.1)) for value in unit]
    changed = np.mean(np.array(_nearest(uneven)) != np.array(_nearest(unit)))
    found, _ = _measure(_part(task), unit, uneven)
    assert _kept(found, "nearest_by_product") == pytest.approx(1 - changed, abs=0.05)
    assert found.value < 0.95
    one_is_long = [value * (1.3 if place == 7 else 1.0) for place, value in enumerate(unit)]
    assert _measure(_part(task), unit, one_is_long)[0].value < 0.99, "others may be long, too"


def _nearest(vectors: Sequence[Tensor]) -> list[int]:
    rows = np.concatenate(vectors).astype(np.float64)
    products = rows @ rows.T
    np.fill_diagonal(products, -np.inf)
    return list(products.argmax(axis=1))


def _landmarks(shift: int) -> list[Tensor]:
    """Return maps with one peak each, of which those of the first sample are moved."""
    down, across = np.mgrid[:32, :32]
    places = np.random.default_rng(1).integers(3, 12, (_COUNT, 4, 2))
    places[0] += shift
    far = (down - places[..., :1, None]) ** 2 + (across - places[..., 1:, None]) ** 2
    return list(np.exp(-far / 4.0)[:, None].astype(np.float32))


def test_maps_with_a_peak_each_keep_its_place() -> None:
    still, _ = _measure(_part("unknown"), _landmarks(0), _landmarks(1))
    assert _kept(still, "peak_agreement") == 1.0, "a neighbour is the same place"
    moved, _ = _measure(_part("unknown"), _landmarks(0), _landmarks(3))
    assert _kept(moved, "peak_agreement") == pytest.approx(1 - 1 / _COUNT)
    flat = list(_RNG.normal(0, 1, (_COUNT, 1, 4, 32, 32)))
    assert "peak_agreement" not in {
        measure.metric for measure in _measure(_part("unknown"), flat, flat)[0].measures
    }


def test_few_values_in_rows_are_compared_within_each_sample() -> None:
    level = np.exp(_RNG.normal(3, 1, (_COUNT, 1, 1, 1)))
    quantiles = level * (1 + 0.1 * np.sort(_RNG.normal(0, 1, (_COUNT, 1, 12, 3))))
    lost = level * np.ones_like(quantiles)
    found, _ = _measure(_part("values"), list(quantiles), list(lost))
    assert _kept(found, "explained_variance") > 0.98
    assert _kept(found, "explained_within_samples") < 0.5


@pytest.mark.parametrize("shape", [(1, 12, 3), (1, 3, 4), (1, 3)])
def test_the_width_between_ordered_columns_is_measured(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    axis = -1 if shape[-1] == 3 else -2
    level = rng.normal(0, 30, (_COUNT, *shape)).mean(axis=axis, keepdims=True)
    width = np.array([-1.0, 0.1, 1.0]).reshape([3 if n == shape[axis] else 1 for n in shape])
    quantiles = level + width * rng.uniform(0.8, 1.2, level.shape)
    for share, is_kept in ((0.5, False), (0.0, False), (0.97, True)):
        narrower = list(level + share * (quantiles - level))
        found, _ = _measure(_part("values"), list(quantiles), narrower)
        assert _kept(found, "explained_variance") > 0.98
        assert _kept(found, "width_kept") == pytest.approx(1 - (1 - share) ** 2, abs=0.01)
        assert (found.value > 0.99) == is_kept
    unordered = list(rng.normal(0, 1, (_COUNT, *shape)))
    metrics = {one.metric for one in _measure(_part("values"), unordered, unordered)[0].measures}
    assert "width_kept" not in metrics


@pytest.mark.parametrize("task", ["sums", "unknown"])
@pytest.mark.parametrize(("unit", "is_kept"), [(1.0, True), (100.0, False)])
def test_a_fifth_of_an_object_costs_less_than_the_error_of_whole_objects(
    task: str, unit: float, is_kept: bool
) -> None:
    rng = np.random.default_rng(4)
    truth = rng.poisson(11, 400)
    counts = truth + rng.normal(0, 1.0, truth.size)
    maps = rng.random((truth.size, 1, 1, 10, 10)) ** 4
    maps *= counts[:, None, None, None, None] / maps.sum(axis=(1, 2, 3, 4), keepdims=True)
    found, _ = _measure(_part(task), list(unit * maps), list(unit * (maps + 0.002)))
    errors = np.abs(counts - truth).mean(), np.abs(counts + 0.2 - truth).mean()
    kept = 1 - (errors[1] - errors[0]) / (truth.mean() - errors[0])
    assert kept > 0.997
    assert (_kept(found, "sum_accuracy") > 0.99) == is_kept
    assert _kept(found, "sum_accuracy") < kept
    more, _ = _measure(_part(task), list(unit * maps), list(unit * (maps + 0.01)))
    assert _kept(more, "sum_accuracy") < 0.94


def test_what_reconstructs_an_input_is_held_against_the_spread_of_its_scores() -> None:
    rng = np.random.default_rng(6)
    sizes = np.exp(rng.normal(0, 0.4, (400, 1, 1)))
    signals = rng.normal(0, 1, (400, 1, 64))
    healthy = signals + sizes * rng.normal(0, 0.2, signals.shape)
    faulty = rng.random(400) < 0.5
    faulty[:_COUNT] = False
    broken = signals + np.where(faulty[:, None, None], rng.normal(0, 0.3, signals.shape), 0.0)
    found_by = _area(((healthy - broken) ** 2).mean(axis=(1, 2)), faulty)
    known = with_residuals(
        ModelDescription(parts=(_part("unknown"),)),
        [{"x": value} for value in signals[:_COUNT].astype(np.float32)],
        [{"y": value} for value in healthy[:_COUNT].astype(np.float32)],
    )
    (part,) = known.parts
    assert part.settings["residuals"]["y"]["mean"] == pytest.approx(0.055, rel=0.2)
    assert part.settings["residuals"]["y"]["independent"] > 40
    for size, is_kept in ((0.04, True), (0.2, False)):
        got = healthy + rng.normal(0, size, signals.shape)
        found, doubt = _measure(part, list(healthy[:_COUNT]), list(got[:_COUNT]))
        area = _area(((got - broken) ** 2).mean(axis=(1, 2)), faulty)
        assert ((2 * area - 1) / (2 * found_by - 1) > 0.99) == is_kept
        assert (found.value > 0.99) == is_kept
        assert "anomalies" in doubt
    unlike = with_residuals(
        ModelDescription(parts=(_part("values"),)),
        [{"x": value} for value in signals],
        [{"y": value} for value in signals[::-1]],
    )
    assert unlike.parts[0].settings == {}


def _area(scores: Floats, is_for: Bools) -> float:
    """Return the area under the ROC curve."""
    return float((scores[is_for][:, None] > scores[~is_for][None, :]).mean())


def test_a_tolerance_bounds_the_share_that_leaves_it() -> None:
    rng = np.random.default_rng(5)
    truth = rng.normal(0, 1, (20000, 1, 3))
    values = truth + rng.normal(0, 0.05, truth.shape)
    got = values + rng.normal(0, 0.01, truth.shape)
    declared = {"y": OutputDeclaration(task="values", tolerance=0.1)}
    (part,) = declared_parts(declared)
    assert declared_keys(part) == {"tolerance": 0.1}
    found, _ = _measure(part, list(values), list(got))
    within = [(np.linalg.norm(each - truth, axis=-1) < 0.1).mean() for each in (values, got)]
    assert _kept(found, "tolerance_kept") == pytest.approx(0.97, abs=0.002)
    assert _kept(found, "tolerance_kept") < within[1] / within[0] < 1.0
    narrow = replace(part, settings={"tolerances": {"y": 1e-9}})
    measures = _measure(narrow, list(values), list(got))[0].measures
    words = next(one.words for one in measures if one.scale.metric == "tolerance_kept")
    assert words == "0.0000 of the results right within 1e-09: output 'y' is off by 0.0174"
    check_tolerances([part], [{"y": value} for value in values[:64]])
    wide = replace(part, settings={"tolerances": {"y": 4.0}})
    with pytest.raises(BuildError, match="takes nearly any result for right"):
        check_tolerances([wide], [{"y": value} for value in values[:64]])
    padded = [{"y": np.where(np.arange(3) == 1, np.nan, value)} for value in values[:64]]
    with pytest.raises(BuildError, match="takes nearly any result for right"):
        check_tolerances([wide], padded)
    by_column = replace(part, settings={"tolerances": {"y": (0.1, 9.0, 9.0)}})
    check_tolerances([by_column], padded)
    check_tolerances([wide], [{"y": value} for value in values[:7]])  # too few to tell


def test_declared_probabilities_lie_between_0_and_1() -> None:
    (part,) = declared_parts({"y": OutputDeclaration(task="probabilities")})
    shares = [{"y": np.array([[0.0, np.nan, 1.0005]])}, {"y": np.zeros((0, 3))}]
    check_probabilities([part], shares)
    scores = [*shares, {"y": np.array([[-3.25, 0.0, 7.5]])}]
    with pytest.raises(BuildError, match=r"declared 'probabilities'.* -3\.25 to 7\.5") as found:
        check_probabilities([part], scores)
    assert found.value.found_in == "outputs.y.task"
    check_probabilities([replace(part, source="values")], scores)


def _tolerance_kept(tolerance: float | tuple[float, ...], *pair: Sequence[Tensor]) -> float:
    declared = {"y": OutputDeclaration(task="values", tolerance=tolerance)}
    (part,) = declared_parts(declared)
    return _kept(_measure(part, *pair)[0], "tolerance_kept")


def test_tolerances_by_column_divide_the_error_of_each_column() -> None:
    rng = np.random.default_rng(6)
    values = rng.normal(0, 1, (200, 1, 3))
    one_off = values + rng.normal(0, 0.01, (200, 1, 1)) * [0, 0, 1]
    pair = list(values), list(one_off)
    assert _tolerance_kept((0.1, 0.1, 0.1), *pair) == pytest.approx(_tolerance_kept(0.1, *pair))
    assert _tolerance_kept((1e-3, 1e-3, 0.1), *pair) == pytest.approx(0.99, abs=0.002)
    assert _tolerance_kept((0.1, 0.1, 0.02), *pair) == pytest.approx(0.75, abs=0.1)
    padded = [np.where(np.arange(3) == 1, np.nan, value) for value in values]
    assert _tolerance_kept((0.1, 0.1, 0.1), padded, list(one_off)) == pytest.approx(0.99, abs=0.002)
    shorter = [value[..., :2] for value in one_off]
    assert _tolerance_kept((0.1, 0.1, 0.1), list(values), shorter) == pytest.approx(0.0)
    (part,) = declared_parts({"y": OutputDeclaration(task="values", tolerance=(0.1, 0.2, 0.3))})
    assert declared_keys(part) == {"tolerance": [0.1, 0.2, 0.3]}


def test_tolerance_holds_for_an_output_whose_parts_are_measured_apart() -> None:
    rng = np.random.default_rng(7)
    scores = rng.uniform(0, 1, (40, 1, 50, 1)) ** 8
    values = list(np.concatenate([rng.normal(0, 300, (40, 1, 50, 4)), scores], axis=-1)[:, 0])
    values = [value[None].astype(np.float32) for value in values]
    got = [value + rng.normal(0, 2.0, value.shape) * [1, 1, 1, 1, 0] for value in values]
    assert _tolerance_kept(5.0, values, got) < 0.5


def test_values_within_a_hundredth_of_their_spread_keep_any_meaning() -> None:
    values = list(_RNG.normal(5, 2, (_COUNT, 1, 3)))
    near = [value + _RNG.normal(0, 0.005, value.shape) for value in values]
    far = [value + _RNG.normal(0, 0.1, value.shape) for value in values]
    assert _measure(_part("unknown"), values, near)[1] == ""
    assert "nothing tells" in _measure(_part("unknown"), values, far)[1]


def test_tokens_between_which_the_float_model_hesitates_cost_little() -> None:
    scores = _RNG.normal(0, 1, (_COUNT, 1, 8, 12))
    scores[..., 0] = scores[..., 1] = 9.0
    scores[..., 1] -= 0.01
    near, far = scores.copy(), scores.copy()
    near[..., 1] += 0.02
    far[:, :, 0, 5] += 20.0
    hesitant, _ = _measure(_part("tokens"), list(scores), list(near))
    wrong, _ = _measure(_part("tokens"), list(scores), list(far))
    assert hesitant.value > 0.99, "all tokens differ"
    assert _kept(wrong, "token_agreement") == pytest.approx(1 - 0.5 / 8, abs=0.01)
    assert _kept(wrong, "token_likelihood") < 0.9


def test_a_single_share_may_be_declared_a_probability_and_loses_likelihood() -> None:
    spec = TensorSpec(name="y", dtype="float32", shape=(1, 1))
    check_outputs({"y": OutputDeclaration(task="probabilities")}, (spec,))
    shares = list(1 / (1 + np.exp(-_RNG.normal(-4, 1.5, (200, 1, 1)))))
    halved = [value / 2 for value in shares]
    found, _ = _measure(_part("probabilities"), shares, halved)
    assert _kept(found, "likelihood") < 0.95


@pytest.mark.parametrize(("operator", "task"), [("Sigmoid", ["probabilities"]), ("Tanh", [])])
def test_a_row_behind_a_sigmoid_is_probabilities(
    operator: str, task: list[str], tmp_path: Path
) -> None:
    model = graph_model(f"(float[1,4] x) => (float[1,4] y) {{ z = {operator}(x) y = Identity(z) }}")
    values: list[Outputs] = [{"y": np.full((1, 4), 0.5, np.float32)}]
    onnx.save(model, tmp_path / "model.onnx")
    found = find_shares(load_source(tmp_path / "model.onnx"), values, ["y"])
    assert [part.task for part in found] == task


@pytest.mark.parametrize("width", [2, 20])
def test_columns_that_vary_little_beside_their_level_must_keep_their_variance(width: int) -> None:
    """Compare coordinates of a town, whose variance is lost in 16 bits for all columns."""
    rng = np.random.default_rng(6)
    level = np.linspace(11.5, 48.1, width)
    given = [(level + rng.normal(0, 1.6e-4, (1, width))).astype(np.float32) for _ in range(_COUNT)]
    coarse = [np.round(value / 5.6e-4).astype(np.float32) * np.float32(5.6e-4) for value in given]
    _, doubt = _measure(_part("values"), given, coarse)
    assert "of column" in doubt, doubt
    assert "tolerance" in doubt
    exact = [value + np.float32(4e-6) for value in given]
    assert not _measure(_part("values"), given, exact)[1]
    halves = [value.astype(np.float16) for value in given]
    near = [value + np.float16(value.max() / 1024) for value in halves]
    assert "of column" not in _measure(_part("values"), halves, near)[1]


def test_a_bias_of_sums_adds_to_a_float_models_own_bias() -> None:
    rng = np.random.default_rng(8)
    counts = rng.poisson(0.4, _COUNT * 8)
    counted = counts + np.abs(rng.normal(0, 0.12, len(counts)))  # a density is never below 0
    maps = [np.full((1, 1, 8, 8), value / 64, np.float32) for value in counted]
    biased, random = (
        [value + np.float32(error / 64) for value, error in zip(maps, errors, strict=True)]
        for errors in (np.full(len(maps), 0.03), rng.normal(0, 0.03, len(maps)))
    )
    agreement, doubt = _measure(_part("sums"), maps, biased)
    assert agreement.value > 0.99
    lost = np.abs(counted + 0.03 - counts).mean() - np.abs(counted - counts).mean()
    assert lost / counts.mean() > 0.04, "the bias is lost as a whole"
    assert "bias of" in doubt
    assert not _measure(_part("sums"), maps, random)[1]


@pytest.mark.parametrize(("scale", "is_share"), [(0.01, True), (100.0, False)])
def test_small_values_that_span_magnitudes_keep_their_relative_error(
    scale: float, is_share: bool
) -> None:
    rng = np.random.default_rng(9)
    sizes = np.exp(rng.normal(0, 0.9, (_COUNT * 6, 1, 1))) * scale
    moved = sizes + 0.05 * scale * np.sign(rng.normal(0, 1, sizes.shape))
    assert (sizes.max() <= 1.0) == is_share
    agreement, doubt = _measure(_part("values"), list(sizes), list(moved))
    relative = [one for one in agreement.measures if one.metric == "median_relative_accuracy"]
    assert bool(relative) != is_share
    assert "median relative error" in (doubt if is_share else relative[0].words)
    near = sizes * 1.001
    assert not _measure(_part("values"), list(sizes), list(near))[1]
