"""Verdicts are compared with plain errors: models computed here, with the truth on fresh inputs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.errors import BuildError
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.progress import silent
from edgepack.packager.source.model import load_source
from edgepack.packager.tasks.describe import describe, describe_outputs
from edgepack.packager.tasks.possible import possible_tasks
from edgepack.packager.tasks.reconstruction import with_residuals
from edgepack.packager.tasks.scores import doubt_mixtures
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.description import GUESSED_FROM, ModelDescription, TaskOutputs
from edgepack.tasks.likelihood import lost_skill, measure_likelihood
from edgepack.tasks.probabilities.measure import compare_probabilities
from edgepack.tasks.values.vectors import common_length

Model = Callable[[Floats], Floats]
_RNG = np.random.default_rng(3)
_WEIGHTS = _RNG.normal(0, 1, (16, 24))


def _draw(count: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, (count, 16))


def _quantized(model: Model, bits: int = 8) -> Model:
    """Return the model with outputs of one scale for the whole tensor, as integer hardware has."""
    seen = model(_draw(200, 7))
    low, high = float(seen.min()), float(seen.max())
    step = (high - low) / (2**bits - 1)
    return lambda x: np.clip(np.round((model(x) - low) / step), 0, 2**bits - 1) * step + low


def _outputs(values: Floats) -> list[Outputs]:
    return [{"y": row[None].astype(np.float32)} for row in values]


def _judge(model: Model, variant: Model, task: str, count: int = 48) -> Verdict:
    """Return the verdict on a variant; of "" the task is guessed."""
    inputs = _draw(count, 1)
    expected = _outputs(model(inputs))
    part = TaskOutputs(task=task, outputs=("y",), source="declared")
    known = ModelDescription(parts=(part,)) if task else describe_outputs(expected)
    return Reference(expected, {}, known).judge(_outputs(variant(inputs)))


def _r2(model: Model, variant: Model) -> float:
    """Return the mean R2 of columns, on inputs that no verdict saw."""
    fresh = _draw(2000, 99)
    want, have = model(fresh), variant(fresh)
    return float(np.mean(1 - ((have - want) ** 2).mean(0) / want.var(0)))


def _sensors(x: Floats) -> Floats:
    """Return ten quantities in their own units."""
    return np.asarray(np.tanh(x @ _WEIGHTS[:, :10]) + 2.0) * np.logspace(-3, 3, 10)


def _forecast(x: Floats) -> Floats:
    """Return the next 24 hours of series of very different scale."""
    scale = np.exp(2.5 * x[:, :1])
    return np.asarray(scale * (5.0 + np.tanh(x[:, 1:] @ _WEIGHTS[1:])))


@pytest.mark.parametrize(
    "task", ["classification", "threshold", "embedding", "sums", "depth", "picture", "segmentation"]
)
def test_a_wrong_declaration_of_sensor_quantities_is_not_silent(task: str) -> None:
    variant = _quantized(_sensors)
    assert _r2(_sensors, variant) < 0.6
    verdict = _judge(_sensors, variant, task)
    assert verdict.weak or not verdict.passed
    assert all("--metric" in weak for weak in verdict.weak)


@pytest.mark.parametrize("task", ["embedding", "threshold"])
def test_a_wrong_declaration_of_forecasts_is_not_silent(task: str) -> None:
    variant = _quantized(_forecast)
    fresh = _draw(2000, 99)
    want, have = _forecast(fresh), variant(fresh)
    course = 1 - np.median(((have - want) ** 2).mean(1) / want.var(1))
    assert course < 0.5
    verdict = _judge(_forecast, variant, task)
    assert verdict.weak or not verdict.passed


def test_a_place_next_to_a_size_and_an_angle_is_no_decision() -> None:
    def box(x: Floats) -> Floats:
        """Centre, sides, and cosine and sine of twice the angle."""
        angle = np.pi * np.tanh(x @ _WEIGHTS[:, 4])
        sides = np.exp(0.2 * x[:, :2]) * [10.0, 4.0]
        return np.column_stack([16 + 3 * x[:, 2:4], sides, np.cos(angle), np.sin(angle)])

    verdict = _judge(box, _quantized(box), "")
    assert verdict.metric != "top1_agreement"
    assert verdict.weak, "nothing tells what the six numbers mean"
    rare = np.array([2.0, 1.5, 1.0, -2.0])
    scores = describe_outputs(_outputs(_logits(_draw(48, 1))[:, :4] + rare))
    assert scores.outputs_of("classification"), "a class may be rare"


def test_short_rows_of_quantities_are_not_taken_for_scores_in_silence() -> None:
    def concentrations(x: Floats) -> Floats:
        return np.asarray(10.0 ** (3.0 * np.tanh(0.2 * x @ _WEIGHTS[:, :4])))

    def places(x: Floats) -> Floats:
        return np.asarray(100.0 * x[:, :3])

    for model in (concentrations, places):
        assert not describe_outputs(_outputs(model(_draw(48, 1)))).outputs_of("classification")
        verdict = _judge(model, _quantized(model), "")
        assert verdict.weak or not verdict.passed

    def few(x: Floats) -> Floats:
        return _logits(x)[:, :5]

    (doubt,) = _judge(few, _quantized(few), "").weak
    assert "[outputs.y] task = 'classification' or 'values'" in doubt, "the guess may be right"
    assert not _judge(few, few, "").weak
    assert not _judge(few, _quantized(few), "classification").weak
    assert not _judge(_logits, _quantized(_logits), "").weak, "twelve quantities are rare"


def _logits(x: Floats) -> Floats:
    return np.asarray(x @ _WEIGHTS[:, :12])


def _shares(x: Floats) -> Floats:
    grown = np.exp(_logits(x) - _logits(x).max(1, keepdims=True))
    return np.asarray(grown / grown.sum(1, keepdims=True))


def _labels(x: Floats) -> Floats:
    """Return the probabilities of eight labels, most of these rare."""
    return np.asarray(1 / (1 + np.exp(-(2.0 * x @ _WEIGHTS[:, :8] - np.linspace(0, 24, 8)))))


def _unit(x: Floats) -> Floats:
    vectors = np.tanh(x @ _WEIGHTS)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("model", "task", "bits"),
    [
        (_logits, "classification", 8),
        (_shares, "classification", 8),
        (_logits, "", 8),
        (_shares, "probabilities", 12),
        (_labels, "threshold", 8),
        (_unit, "embedding", 10),
        (_forecast, "sums", 16),
        (_sensors, "values", 24),
    ],
)
def test_a_true_declaration_of_a_good_variant_is_not_weak(
    model: Model, task: str, bits: int
) -> None:
    verdict = _judge(model, _quantized(model, bits), task)
    assert verdict.passed
    assert verdict.weak == ()


def test_pictures_without_objects_do_not_make_the_verdict_on_counts_weak() -> None:
    def density(x: Floats) -> Floats:
        objects = np.where(np.arange(len(x)) % 3 == 0, 0.0, 1.0)[:, None]
        return np.asarray(objects * (1.0 + np.abs(x)) + 0.02 * np.sin(99.0 * x))

    verdict = _judge(density, _quantized(density, 6), "sums")
    assert verdict.passed
    assert verdict.weak == ()


def test_a_task_that_sees_no_sample_vouches_for_exact_values_only() -> None:
    def of_one_class(x: Floats) -> Floats:
        return np.asarray(np.tanh(x[:, :4]) + np.array([9.0, 0.0, 0.0, 0.0]))

    def with_noise(x: Floats) -> Floats:
        return of_one_class(x) + 0.15 * np.sin(1e3 * x[:, :4])

    (weak,) = _judge(of_one_class, with_noise, "classification").weak
    assert "other samples" in weak
    assert _judge(of_one_class, _quantized(of_one_class), "classification").weak == ()


@pytest.mark.parametrize("task", ["", "classification", "values", "probabilities", "embedding"])
def test_a_float_model_with_a_constant_answer_makes_a_weak_verdict(task: str) -> None:
    def dead(x: Floats) -> Floats:
        return np.tile([0.1, 0.2, 0.7], (len(x), 1))

    verdict = _judge(dead, dead, task)
    assert "the same in all 48 samples" in verdict.weak[0]
    assert "[outputs.y] task = 'ignored'" in verdict.weak[0]


def _described(text: str, path: Path) -> tuple[ModelDescription, list[Outputs]]:
    """Return the description of a model with rows of eight numbers as input, and its outputs."""
    onnx.save(onnx.parser.parse_model(text), path)
    source, run = load_source(path), onnxruntime.InferenceSession(path)
    inputs = _draw(24, 1).astype(np.float32)[:, None, :8]
    names = [spec.name for spec in source.outputs]

    def float_run(feeds: Feeds) -> Outputs:
        return dict(zip(names, run.run(None, dict(feeds)), strict=True))

    samples = Samples(count=24, read=lambda index: {"x": inputs[index]}, source="")
    found = describe(source, samples, float_run, silent).description
    return found, [float_run({"x": row}) for row in inputs]


@pytest.mark.parametrize("task", ["values", "classification"])
def test_declared_parameters_of_a_mixture_make_a_weak_verdict(tmp_path: Path, task: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> model (float[1,8] x)
        => (float[1,24] mixture, float[1,16] plain) { a = Softmax(x) b = Exp(x)
        mixture = Concat<axis = 1>(a, x, b) plain = Concat<axis = 1>(x, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    source = load_source(tmp_path / "model.onnx")
    for name, is_doubted in (("mixture", True), ("plain", False)):
        declared = TaskOutputs(task=task, outputs=(name,), source="declared")
        (part,) = doubt_mixtures(source, [declared])

        def model(x: Floats) -> Floats:
            grown = np.exp(x[:, :8])
            shares = grown / grown.sum(axis=1, keepdims=True)
            return np.concatenate([shares, x[:, :8], grown], axis=1)

        def judged(got: Floats, part: TaskOutputs = part) -> Verdict:
            (name,) = part.outputs
            wanted, given = (
                [{name: row[None].astype(np.float32)} for row in values]
                for values in (model(_draw(48, 1)), got)
            )
            return Reference(wanted, {}, ModelDescription(parts=(part,))).judge(given)

        near = model(_draw(48, 1))
        off = near + np.random.default_rng(0).normal(0, 0.03, near.shape) * near.std(axis=0)
        assert judged(off).passed
        assert bool(judged(off).weak) == is_doubted
        assert not judged(near).weak


@pytest.mark.parametrize("count", [1, 3])
def test_values_that_keep_their_variance_and_lose_distance_make_a_weak_verdict(count: int) -> None:
    def pose(x: Floats) -> Floats:
        return np.asarray(np.tanh(x @ _WEIGHTS[:, :count])) * np.logspace(0, 2, count)

    def noisy(share: float, seed: int = 5) -> Model:
        """Return a model with an error of a share of each column's deviation."""

        def model(x: Floats) -> Floats:
            right = pose(x)
            error = np.random.default_rng(seed).normal(0, share, right.shape)
            return np.asarray(right + error * pose(_draw(2000, 99)).std(axis=0))

        return model

    fresh = _draw(4000, 98)
    naive = np.abs(pose(fresh) - pose(fresh).mean(axis=0)).mean(axis=0)
    for own in (0.02, 0.1, 0.5, 0.9):
        before, after = (
            1 - (np.abs(model(fresh) - pose(fresh)).mean(axis=0) / naive).mean()
            for model in (noisy(own), noisy(float(np.hypot(own, 0.085))))
        )
        assert after < 0.99 * before, "whatever the float model's own error is"
    verdict = _judge(pose, noisy(0.085), "values")
    assert verdict.passed
    (weak,) = verdict.weak
    assert "distances" in weak
    assert "[outputs.y] tolerance" in weak
    assert "--metric" in weak
    assert not _judge(pose, noisy(0.05), "values").weak

    def price(x: Floats) -> Floats:
        return np.exp(1.5 * pose(x)[:, :1])

    def cheaper(x: Floats) -> Floats:
        return np.where(price(x) > 3.0, 0.9, 1.0) * price(x)

    dear = _judge(price, cheaper, "values")
    assert dear.passed
    assert not dear.weak, "a quantity that spans magnitudes has a relative error"

    inputs = _draw(48, 1)
    part = TaskOutputs(
        task="values", outputs=("y",), source="declared", settings={"tolerances": {"y": 200.0}}
    )
    known = ModelDescription(parts=(part,))
    expected, got = (_outputs(model(inputs)) for model in (pose, noisy(0.085)))
    assert not Reference(expected, {}, known).judge(got).weak, "a tolerance settles it"


def test_values_of_a_state_are_compared_within_each_series() -> None:
    rng, steps = np.random.default_rng(4), 8
    levels = np.exp(rng.normal(0, 1.5, (24, 1)))
    series = levels * np.sin(rng.uniform(0, 6, (24, 1)) + np.arange(steps))
    expected = _outputs(series.reshape(-1, 1))
    got = _outputs(np.round(series / 0.5).reshape(-1, 1) * 0.5)

    def judged(count: int = 24, **length: int) -> Verdict:
        part = TaskOutputs(task="values", outputs=("y",), source="declared", settings=length)
        known, many = ModelDescription(parts=(part,)), count * steps
        return Reference(expected[:many], {}, known).judge(got[:many])

    lost = np.square(np.round(series / 0.5) * 0.5 - series).mean(axis=1) / series.var(axis=1)
    assert np.mean(lost) > 0.1, "a tenth is lost"
    pooled = judged()
    assert pooled.passed
    assert not pooled.weak, "the largest series make the variance"
    assert not judged(steps=steps).passed
    unstated = judged(chain_steps=steps)
    assert unstated.passed
    assert "[inputs.STATE] kind = 'raw' and steps" in unstated.weak[0]
    assert "only 3 series" in judged(3, steps=steps).weak[0]


@pytest.mark.parametrize("is_chosen", [False, True], ids=["scores", "decisions"])
def test_errors_of_decisions_that_grow_along_chains_ask_for_steps(is_chosen: bool) -> None:
    rng, steps = np.random.default_rng(5), 8
    scores = rng.normal(0, 6, (200, steps, 4)).astype(np.float32)

    def doubts(errors: Floats, **length: int) -> tuple[str, ...]:
        moved = scores + errors * np.array([1, -1, 0, 0], np.float32)
        made = [value.argmax(-1) if is_chosen else value for value in (scores, moved)]
        rows = (value.reshape(200 * steps, *value.shape[2:]) for value in made)
        expected, got = ([{"y": one[None]} for one in row] for row in rows)
        part = TaskOutputs(
            task="classification", outputs=("y",), source="declared", settings=length
        )
        return Reference(expected, {}, ModelDescription(parts=(part,))).judge(got).weak

    added = np.arange(0.05, 0.42, 0.05, dtype=np.float64)[:, None]
    assert "[inputs.STATE] kind = 'raw' and steps" in doubts(added, chain_steps=steps)[0]
    assert not doubts(added), "a model without a state"
    assert not doubts(np.full((steps, 1), 0.2), chain_steps=steps), "the state is forgotten"
    assert not doubts(added / 100, chain_steps=steps), "too small to cost anything"


def test_quantized_quantities_are_no_decisions(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> model (float[N,8] x)
        => (uint8[N,8] bytes, uint8[N,8] scaled, int64[N,1] best, int32[N,8] above) {
        y = Tanh(x) scale = Constant<value_float = 0.01>() zero = Constant<value = uint8 {128}>()
        bytes = QuantizeLinear(y, scale, zero) factor = Constant<value_float = 90.0>()
        wide = Mul(y, factor) moved = Add(wide, factor) scaled = Cast<to = 2>(moved)
        first = ArgMax<axis = 1>(y) one = Constant<value_int = 1>() best = Add(first, one)
        is_above = Greater(y, scale) above = Cast<to = 6>(is_above) }"""
    found, expected = _described(text, tmp_path / "model.onnx")
    tasks = {name: part.task for part in found.parts for name in part.outputs}
    assert tasks == {
        "bytes": "unknown",
        "scaled": "unknown",
        "best": "classification",
        "above": "classification",
    }

    def judge(noise: int) -> Verdict:
        moved = [
            one | {name: np.clip(np.add(one[name], noise), 0, 255) for name in ("bytes", "scaled")}
            for one in expected
        ]
        return Reference(expected, {}, found).judge(moved)

    verdict = judge(1)
    assert verdict.passed
    assert any("'bytes' means" in weak and "'values'" in weak for weak in verdict.weak)
    assert not judge(30).passed


def test_outputs_that_depend_on_no_input_value_need_no_declaration(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> model (float[N,8] x)
        => (float[N,8] y, float[3] anchors, int64[2] size, float[N,8] used) {
        y = Sin(x) anchors = Constant<value_floats = [1.0, 2.0, 3.0]>()
        size = Shape(x) read = Cast<to = 1>(size) all = ReduceSum(read) used = Mul(x, all) }"""
    found, expected = _described(text, tmp_path / "model.onnx")
    assert {part.outputs for part in found.parts if part.source == "graph"} == {
        ("anchors",),
        ("size",),
    }
    (weak,) = (
        Reference(expected, {}, found)
        .judge([one | {"y": np.add(one["y"], 0.1)} for one in expected])
        .weak
    )
    assert "'anchors'" not in weak
    assert "'size'" not in weak
    moved = [one | {"anchors": np.multiply(one["anchors"], 1.05)} for one in expected]
    assert not Reference(expected, {}, found).judge(moved).passed


def test_scores_that_are_steps_of_a_grade_keep_the_grade() -> None:
    cuts = np.array([-2.0, -1.4, -0.9, 0.0, 0.9, 1.4, 2.0])

    def steps(x: Floats, noise: float = 0.0) -> Floats:
        quality = 2.0 * x[:, :1] + noise * np.sin(1e3 * x[:, 1:2])
        return np.asarray(1 / (1 + np.exp(-4.0 * (quality - cuts))))

    def graded(noise: float) -> tuple[Verdict, float]:
        fresh = _draw(4000, 99)
        grades = (np.random.default_rng(5).random((4000, 1)) < steps(fresh)).sum(axis=1)
        float_error, error = (
            float(np.square((steps(fresh, by) > 0.5).sum(axis=1) - grades).mean())
            for by in (0.0, noise)
        )
        whole = float(grades.var())
        truth = (whole - error) / (whole - float_error)
        return _judge(steps, lambda x: steps(x, noise), "threshold", 36), truth

    verdict, truth = graded(0.8)
    assert truth < 0.99
    assert not verdict.passed
    assert verdict.metric == "grade_kept"
    assert verdict.task_kept == pytest.approx(truth, abs=0.03)
    verdict, truth = graded(0.2)  # of few samples, a changed grade or two would fail
    assert truth > 0.99
    assert verdict.passed
    assert not verdict.weak


@pytest.mark.parametrize("task", ["threshold", "sound"])
def test_whole_numbers_that_name_no_class_are_compared_as_values(task: str) -> None:
    def bytes_of(values: Floats) -> list[Outputs]:
        return [{"y": row[None]} for row in np.clip(values * 30 + 128, 1, 255).astype(np.uint8)]

    columns = _draw(48, 1)[:, : 8 if task == "threshold" else 1]
    part = TaskOutputs(task=task, outputs=("y",), source="declared")
    reference = Reference(bytes_of(columns), {}, ModelDescription(parts=(part,)))
    assert reference.judge(bytes_of(columns)).weak == ()
    verdict = reference.judge(bytes_of(columns[::-1]))
    assert verdict.weak or not verdict.passed


@pytest.mark.parametrize("task", ["", "values", "probabilities", "threshold", "anomaly"])
def test_a_single_share_without_axes_is_judged(task: str) -> None:
    shares = [np.float32(1 / (1 + np.exp(-3 * x))) for x in _draw(48, 1)[:, 0]]
    expected: list[Outputs] = [{"y": np.asarray(share)} for share in shares]
    shrunk: list[Outputs] = [{"y": np.asarray(0.3 + 0.4 * share)} for share in shares]
    part = TaskOutputs(task=task, outputs=("y",), source="declared")
    known = ModelDescription(parts=(part,)) if task else describe_outputs(expected)
    assert Reference(expected, {}, known).judge(expected).passed
    verdict = Reference(expected, {}, known).judge(shrunk)
    assert verdict.weak or not verdict.passed
    assert lost_skill([np.asarray(one) for one in shares], [one["y"] for one in shrunk]) > 0.1


def test_a_task_that_few_samples_tell_is_weak() -> None:
    expected, got = _outputs(_logits(_draw(3, 1))), _outputs(_quantized(_logits)(_draw(3, 1)))
    part = TaskOutputs(
        task="classification", outputs=("y",), source="values", settings={GUESSED_FROM: 3}
    )
    verdict = Reference(expected, {}, ModelDescription(parts=(part,))).judge(got)
    assert verdict.passed
    assert "by 3 samples" in verdict.weak[0]


def _rare(x: Floats) -> Floats:
    """Return both probabilities of a rare event: the skill of .05 nats, and always one decision."""
    share = 1 / (1 + np.exp(-(1.2 * x[:, 0] - 4.5)))
    return np.stack([1 - share, share], axis=1)


def _levelled(x: Floats) -> Floats:
    """Return the same with scores near each other, whose rows do not sum to 1."""
    share = _rare(x)[:, 1]
    return np.stack([1 - share, np.sqrt(0.012 * share)], axis=1)


@pytest.mark.parametrize("task", ["", "classification", "probabilities"])
def test_lost_skill_of_a_rare_event_is_not_silent(task: str) -> None:
    fresh = _draw(4000, 99)
    truth = np.random.default_rng(5).random(4000) < _rare(fresh)[:, 1]

    def skill(model: Model) -> float:
        shares = np.clip(model(fresh)[:, 1], 1e-4, 1 - 1e-4)
        loss = -np.where(truth, np.log(shares), np.log(1 - shares)).mean()
        base = truth.mean()
        return float(1 - loss / -(base * np.log(base) + (1 - base) * np.log(1 - base)))

    assert skill(_levelled) < 0.8 * skill(_rare)
    verdict = _judge(_rare, _levelled, task)
    assert verdict.weak or not verdict.passed


def test_likelihood_is_bounded_and_never_above_the_float_models() -> None:
    shares = list(_shares(_draw(30, 1))[:, None])
    found = measure_likelihood("y", shares, [one * 1.05 for one in shares])
    assert found is not None
    assert 1.0 - 1e-5 < found[0].value <= 1.0
    compared = compare_probabilities("y", shares, [np.round(one * 16) / 16 for one in shares])
    by_metric = {one.metric: one for one in compared.measures}
    for metric in ("likelihood", "auc"):
        low = by_metric[metric].low
        assert low is not None
        assert low < by_metric[metric].value <= 1.0


def test_skill_is_a_share_of_what_the_model_tells() -> None:
    want = list(_rare(_draw(400, 1))[:, None])
    constant = [np.asarray(np.mean(want, axis=0))] * len(want)
    assert lost_skill(want, want) == pytest.approx(0.0, abs=1e-6)
    assert lost_skill(want, constant) == pytest.approx(1.0, abs=0.02)


def test_few_crossings_are_no_proof_and_each_column_counts() -> None:
    def seldom(x: Floats) -> Floats:
        return np.asarray(np.tanh(x @ _WEIGHTS[:, :4]) * [1.0, 0.01, 1.0, 1.0] - [0.99, 1, 2, 3])

    verdict = _judge(seldom, _quantized(seldom, 6), "threshold")
    assert not verdict.passed
    assert "explained_by_column" in verdict.metric
    verdict = _judge(seldom, _quantized(seldom, 10), "threshold")
    assert verdict.passed
    assert "fewer than 29 scores" in verdict.weak[0]
    assert "samples" in verdict.weak[0]


def _autoencoder(x: Floats) -> Floats:
    return np.asarray(0.9 * x + 0.1 * np.tanh(x @ _WEIGHTS[:, :16]))


@pytest.mark.parametrize("shape", [(1, 16), (1, 1, 4, 4)])
def test_a_reconstruction_is_no_anomaly_score(shape: tuple[int, ...]) -> None:
    inputs = _draw(24, 1)
    expected = _outputs(_autoencoder(inputs))
    feeds: list[Outputs] = [{"x": row.reshape(shape)} for row in inputs]
    part = TaskOutputs(task="anomaly", outputs=("y",), source="declared")
    with pytest.raises(BuildError, match="reconstructs input 'x'") as caught:
        with_residuals(ModelDescription(parts=(part,)), feeds, expected)
    assert "--metric" in str(caught.value.remedy)
    scores: list[Outputs] = [{"y": one["y"].max(axis=-1, keepdims=True)} for one in expected]
    known = ModelDescription(parts=(part,))
    assert with_residuals(known, feeds, scores) == known


def test_a_sample_of_zeros_has_a_residual_like_others() -> None:
    part = TaskOutputs(task="values", outputs=("y",), source="declared")

    def residual(inputs: Floats) -> Mapping[str, float]:
        feeds: list[Outputs] = [{"x": row} for row in inputs]
        expected = _outputs(_autoencoder(inputs) + 0.1)
        found = with_residuals(ModelDescription(parts=(part,)), feeds, expected)
        settings = found.parts[0].settings
        return dict(settings["residuals"]["y"]) if "residuals" in settings else {}

    inputs = _draw(24, 1)
    usual = residual(inputs)
    silent = residual(np.concatenate([inputs, np.zeros((1, 16))]))
    assert usual["spread"] > 0.0
    assert silent["spread"] > usual["spread"] / 2


def _spectrum(x: Floats) -> Floats:
    """Return real and imaginary parts of 40 bands whose level falls by 2 dB a band."""
    parts = np.random.default_rng(8).normal(0, 0.3, (16, 80))
    return np.asarray((x @ parts) * 10 ** (-0.1 * (np.arange(80) % 40)))


def test_a_band_of_a_spectrum_that_is_lost_is_not_silent() -> None:
    def in_bands(model: Model) -> list[Outputs]:
        return [{"y": one["y"].reshape(1, 2, 40)} for one in _outputs(model(_draw(32, 1)))]

    part = TaskOutputs(task="values", outputs=("y",), source="declared")
    reference = Reference(in_bands(_spectrum), {}, ModelDescription(parts=(part,)))
    fresh = _draw(2000, 99)
    power = [model(fresh)[:, 39] ** 2 + model(fresh)[:, 79] ** 2 for model in _BOTH]
    assert np.median(np.abs(np.log10(power[1] + 1e-12) - np.log10(power[0]))) > 1
    verdict = reference.judge(in_bands(_BOTH[1]))
    assert verdict.value > 0.99
    assert "of axis 2" in verdict.weak[0]
    assert reference.judge(in_bands(_quantized(_spectrum, 16))).weak == ()


_BOTH = (_spectrum, _quantized(_spectrum))


def test_lengths_next_to_a_constant_are_no_common_length() -> None:
    vectors = _RNG.normal(0, 1, (30, 1, 24))
    unit = list(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
    assert common_length(unit) == pytest.approx(1.0)
    assert common_length([one.astype(np.float16) for one in unit]) == pytest.approx(1.0, abs=1e-3)
    assert common_length(list(vectors + 1e4)) == 0.0


def test_rows_of_any_number_have_no_common_length() -> None:
    scores = [np.ones(count, np.float32) for count in (3, 0, 2, *range(1, 20))]
    assert common_length(scores) == 0.0
    assert possible_tasks(scores)[-1]
    assert common_length([np.empty((0, 4), np.float32)] * 20) == 0.0


def test_whole_numbers_in_floats_are_decisions() -> None:
    def numbers(x: Floats) -> Floats:
        return np.asarray(_logits(x).argmax(axis=1, keepdims=True), np.float64)

    def next_to(x: Floats) -> Floats:
        return np.where(x[:, :1] > 1.0, numbers(x) + 1.0, numbers(x) + 0.02)

    verdict = _judge(numbers, next_to, "classification")
    assert verdict.metric == "top1_agreement"
    assert verdict.value == pytest.approx(1 - (_draw(48, 1)[:, 0] > 1.0).mean())
    assert _judge(numbers, numbers, "").weak != (), "48 equal numbers prove little"


def test_a_picture_is_held_against_the_change_of_its_input() -> None:
    rng = np.random.default_rng(4)
    truth = [np.cumsum(rng.normal(0, 0.05, (1, 1, 16, 16)), axis=-1) % 1.0 for _ in range(12)]
    noisy: list[Outputs] = [{"x": one + rng.normal(0, 0.008, one.shape)} for one in truth]
    better = [one + rng.normal(0, 0.003, one.shape) for one in truth]  # 50 dB, of 42 dB
    expected: list[Outputs] = [{"y": one} for one in better]
    part = TaskOutputs(task="picture", outputs=("y",), source="declared")
    known = with_residuals(ModelDescription(parts=(part,)), noisy, expected)
    got: list[Outputs] = [{"y": one + rng.normal(0, 0.006, one.shape)} for one in better]
    verdict = Reference(expected, {}, known).judge(got)
    assert verdict.passed, "44 dB to the float model"
    assert "change of its input" in verdict.weak[0]
    fine: list[Outputs] = [{"y": one + 0.001} for one in better]
    assert Reference(expected, {}, known).judge(fine).weak == ()


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({"graph_layout": "fcos", "may_be": "mixture"}, "the graph gives boxes there"),
        ({"graph_layout": "unknown", "may_be": "boxes"}, "in a layout that is not known"),
        ({"may_be": "mixture"}, "declared 'values', and a Softmax gives a part"),
        ({"may_be": "boxes"}, "four numbers beside scores"),
        ({"may_be": "quantities"}, "may be quantities side by side"),
        ({"may_be": "a meaning of a later release"}, ""),
    ],
)
def test_a_layout_of_the_graph_comes_before_a_meaning_that_the_values_may_have(
    settings: dict[str, str], because: str
) -> None:
    inputs = _draw(48, 1)
    expected = _outputs(inputs[:, :3])
    got = _outputs(inputs[:, :3] + 0.02 * inputs[:, 3:6])
    part = TaskOutputs(task="values", outputs=("y",), source="declared", settings=settings)
    weak = Reference(expected, {}, ModelDescription(parts=(part,))).judge(got).weak
    assert because in " ".join(weak)
    assert bool(weak) == bool(because)
