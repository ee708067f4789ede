"""What outputs mean, when a candidate is near enough, and what a device's probe must tolerate."""

from collections.abc import Callable

import numpy as np
import pytest

from edgepack.bundle.golden import compare_outputs
from edgepack.bundle.manifest import GoldenAgreement, GoldenTolerance
from edgepack.errors import BuildError
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.tolerances import Seen, derive_agreements, derive_tolerances
from edgepack.packager.gates.user_metric import evaluate_metric, judge_metric
from edgepack.packager.profiles.schema import AccuracyBudget, AccuracyBudgets
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tasks.describe import describe_outputs
from edgepack.packager.tasks.possible import possible_of, possible_tasks
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs
from tests.unit.packager_passes.declaring import declare

BUDGETS: AccuracyBudgets = {}


def _softmax(values: np.ndarray) -> np.ndarray:
    grown = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True), dtype=np.float32)


def _outputs(
    count: int, shape: tuple[int, ...], *, seed: int = 0, scale: float = 2.0
) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, scale, shape).astype(np.float32) for _ in range(count)]


def _named(values: list[np.ndarray]) -> list[Outputs]:
    return [{"y": value} for value in values]


def _tasks(expected: list[Outputs]) -> dict[str, str]:
    description = describe_outputs(expected)
    return {name: description.task_of(name) for name in expected[0]}


def _derive_limits(
    expected: list[Outputs], got: list[Outputs]
) -> tuple[dict[str, GoldenTolerance], tuple[GoldenAgreement, ...]]:
    reference = Reference(expected, BUDGETS)
    golden = slice(8)
    seen = [
        Seen(errors=reference.errors(got), expected=tuple(expected[golden]), got=tuple(got[golden]))
    ]
    description = reference.description
    return derive_tolerances(seen, description), derive_agreements(seen, description)


def test_outputs_are_told_apart_by_what_they_hold() -> None:
    unit = np.ones((1, 4), dtype=np.float32) / 2
    sample: Outputs = {
        "scores": np.array([[3.0, -1.0]], dtype=np.float32),
        "probabilities": _softmax(np.zeros((1, 5))),
        "characters": _softmax(np.zeros((1, 7, 5))),
        "embedding": unit,
        "hidden": np.zeros((1, 7, 5), dtype=np.float32),
        "speech": np.array([[0.5]], dtype=np.float32),
        "label": np.array([3]),
    }
    assert _tasks([sample]) == {
        "scores": "classification",
        "probabilities": "classification",
        "characters": "classification",
        "embedding": "unknown",
        "hidden": "unknown",
        "speech": "unknown",
        "label": "classification",
    }


def test_a_distribution_may_hold_zeros_and_a_unit_vector_may_be_rounded() -> None:
    sample: Outputs = {
        "sure": np.array([[1.0, 0.0, 0.0]], np.float32),
        "rounded below zero": np.array([[1.0, -1e-7, 1e-7]], np.float32),
        "embedding": np.array([[0.6002, -0.8003]], np.float32),
        "longer": np.array([[0.62, -0.81]], np.float32),
    }
    assert _tasks([sample]) == {
        "sure": "classification",
        "rounded below zero": "classification",
        "embedding": "unknown",
        "longer": "classification",
    }


def test_a_single_number_decides_nothing_whatever_is_said_of_it() -> None:
    samples: list[Outputs] = [{"speech": np.asarray(value, np.float32)} for value in (0.1, 0.9)]
    reference = Reference(samples, BUDGETS, declare(speech="classification"))
    assert reference.judge(samples).metric == "explained_variance"
    assert not reference.judge([{"speech": np.asarray(0.5, np.float32)}] * 2).passed
    nothing: list[Outputs] = [{"found": np.zeros((1, 0), np.float32)}] * 2
    found = Reference(nothing, BUDGETS, declare(found="classification"))
    assert found.judge(nothing).metric == "explained_variance"


def test_rows_without_a_clear_winner_hold_no_scores() -> None:
    rng = np.random.default_rng(0)
    ratings = [
        (rng.uniform(1, 4.5) + rng.normal(0, 0.4, (1, 3))).astype(np.float32) for _ in range(40)
    ]
    faces = _outputs(40, (1, 128), scale=1.0)
    logits = _outputs(40, (1, 10), scale=9.0)
    expected: list[Outputs] = [
        {"ratings": a, "face": b, "logits": c}
        for a, b, c in zip(ratings, faces, logits, strict=True)
    ]
    reference = Reference(expected, BUDGETS)
    assert _tasks(expected) == {
        "ratings": "unknown",
        "face": "unknown",
        "logits": "classification",
    }
    remarks = reference.judge(expected).remarks
    assert [remark.split(":")[0] for remark in remarks] == [
        "Nothing shows that output 'ratings' holds scores, so its values are judged",
        "Nothing shows that output 'face' holds scores, so its values are judged",
    ]
    assert remarks[0].endswith(
        "[outputs.ratings] with task = 'classification' in edgepack.toml if the highest one wins."
    )
    known = declare(ratings="values", face="embedding")
    assert Reference(expected, BUDGETS, known).judge(expected).remarks == ()


@pytest.mark.parametrize(
    ("values", "tasks"),
    [
        ([a / np.linalg.norm(a) for a in _outputs(9, (1, 24))], ["embedding", "values"]),
        (_outputs(9, (1, 4)), ["values", "classification"]),
        (_outputs(9, (1, 1)), ["values"]),
        ([np.abs(a) for a in _outputs(9, (1, 1))], ["values", "anomaly"]),
        (
            [np.abs(a) for a in _outputs(9, (1, 1, 32, 32), scale=9.0)],
            ["sums", "depth", "picture", "values", "segmentation"],
        ),
        (
            [np.abs(a) for a in _outputs(9, (1, 3, 32, 32), scale=9.0)],
            ["picture", "values", "sums", "depth", "segmentation"],
        ),
        (_outputs(9, (1, 8, 16, 16), scale=9.0), ["segmentation", "values", "picture"]),
        (
            [1 / (1 + np.exp(a)) for a in _outputs(9, (1, 1, 16, 16))],
            ["picture", "segmentation", "threshold", "values", "sums", "depth"],
        ),
        (
            [1 / (1 + np.exp(a)) for a in _outputs(9, (1, 6))],
            ["probabilities", "threshold", "values", "classification"],
        ),
        ([np.array([[3, n]]) for n in range(9)], ["classification", "values"]),
        (
            [
                np.concatenate([a, np.maximum(a[:, :3] - 4, 0) / 9], 1)
                for a in _outputs(9, (1, 4, 144))
            ],
            ["detections", "values", "tokens", "classification", "text", "embedding"],
        ),
    ],
)
def test_a_weak_verdict_lists_the_tasks_that_fit(
    values: list[np.ndarray], tasks: list[str]
) -> None:
    expected = _named(values)
    assert list(possible_tasks(values)) == tasks
    unknown = ModelDescription(parts=(TaskOutputs(task="unknown", outputs=("y",)),))
    got = _named([value * 1.5 for value in values])
    weak = Reference(expected, BUDGETS, unknown).judge(got).weak
    assert weak[0].count("[outputs.y] task = '") == 1
    assert all(f"'{task}'" in weak[0] for task in tasks)
    assert weak[0].count("'") == 2 * (1 + len(tasks))


@pytest.mark.parametrize("size", [2, 16])
def test_a_map_of_a_detector_is_not_offered_as_a_picture_or_classes_first(size: int) -> None:
    """FCOS gives the distances to the sides of a box, and scores, for each place of a map."""
    expected: list[Outputs] = [
        {"sides": np.abs(a), "classes": 1 / (1 + np.exp(b)), "other": c}
        for a, b, c in zip(
            _outputs(9, (1, 4, size, size), scale=9.0),
            _outputs(9, (1, 20, size, size), scale=9.0),
            _outputs(9, (1, 6, size + 1, size), scale=9.0),
            strict=True,
        )
    ]
    assert possible_of(expected, "sides")[0] == "values"
    assert possible_of(expected, "classes")[0] == "threshold"
    assert possible_of(expected, "other")[0] == ("segmentation" if size > 2 else "values")
    apart = [{"sides": outputs["sides"]} for outputs in expected]
    assert possible_of(apart, "sides")[0] == "values", "no picture has four channels"


def test_a_short_row_that_was_taken_for_scores_is_told_since_it_may_hold_quantities() -> None:
    angles = _named(_outputs(40, (1, 3), scale=10.0))
    remarks = Reference(angles, BUDGETS).judge(angles).remarks
    assert remarks == (
        "Output 'y' was taken for the scores of 3 classes: judged is which one is highest. "
        "[outputs.y] with task = 'values' in edgepack.toml if they are quantities side by side.",
    )
    for known in ("values", "classification"):
        assert Reference(angles, BUDGETS, declare(y=known)).judge(angles).remarks == ()


def test_a_score_that_finds_nothing_in_any_sample_is_told() -> None:
    rng = np.random.default_rng(0)
    quiet = [rng.uniform(0, 0.003, (1, 1)).astype(np.float32) for _ in range(20)]
    quiet[0][:] = 0.003
    remarks = Reference(_named(quiet), BUDGETS).judge(_named(quiet)).remarks
    assert len(remarks) == 1
    assert remarks[0].startswith("Output 'y' is at most 0.003 in all 20 samples: if it is a score")
    quiet[4] = np.array([[0.9]], np.float32)
    assert Reference(_named(quiet), BUDGETS).judge(_named(quiet)).remarks == ()
    offsets = [value - 0.001 for value in quiet[5:]]
    assert Reference(_named(offsets), BUDGETS).judge(_named(offsets)).remarks == ()


def test_too_few_rows_do_not_tell_whether_winners_are_clear() -> None:
    rows = _outputs(40, (1, 10), scale=0.5)
    assert _tasks(_named(rows[:7])) == {"y": "classification"}
    assert _tasks(_named(rows[:8])) == {"y": "unknown"}
    assert _tasks(_named(rows)) == {"y": "unknown"}


def test_rows_are_told_apart_whichever_axis_counts_them() -> None:
    points = np.random.default_rng(0).normal(0, 90, (20, 17, 3)).astype(np.float32)
    expected: list[Outputs] = [
        {"time first": first, "points": some}
        for first, some in zip(map(_softmax, _outputs(20, (50, 1, 4))), points, strict=True)
    ]
    assert _tasks(expected) == {"time first": "classification", "points": "unknown"}


def _lines(rng: np.random.Generator, classes: int = 12) -> np.ndarray:
    """Scores float32 (20, 1, classes) of characters, time first, one far above the others."""
    rows = rng.normal(0, 3, (20, 1, classes))
    winners = rng.integers(0, classes, 20)
    rows[np.arange(20), 0, winners] = 25.0
    return np.asarray(rows, dtype=np.float32)


def test_rows_of_values_with_clear_winners_keep_these_too() -> None:
    rng = np.random.default_rng(0)
    values = [_lines(rng) for _ in range(20)]
    got = [value.copy() for value in values]
    for value in got:  # one of 20 characters of each line, by a hair
        winner = int(value[7, 0].argmax())
        value[7, 0, (winner + 1) % 12] = value[7, 0, winner] + 0.01
    reference = Reference(_named(values), BUDGETS)
    assert describe_outputs(_named(values)).parts[0].settings == {"winners": ("y",)}
    verdict = reference.judge(_named(got))
    assert verdict.metric == "sequence_agreement"
    assert verdict.value == pytest.approx(0.95)
    loud = [value * np.float32(1.2) for value in values]
    assert reference.judge(_named(loud)).metric == "explained_variance", "the values count too"
    assert reference.judge(_named(values)).passed
    few = describe_outputs(_named(values[:7]))
    assert few.parts[0].settings == {}, "seven samples do not tell"


@pytest.mark.parametrize(("classes", "winners"), [(8, ("y",)), (7, None)])
def test_rows_of_few_columns_are_coordinates_as_often_as_classes(
    classes: int, winners: tuple[str, ...] | None
) -> None:
    rng = np.random.default_rng(0)
    values = [_lines(rng, classes) for _ in range(20)]
    assert describe_outputs(_named(values)).parts[0].settings.get("winners") == winners


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda rng: rng.normal(0, 1, (1, 20, 48)), id="hidden states"),
        pytest.param(lambda rng: rng.uniform(0, 640, (1, 20, 4)), id="boxes"),
        pytest.param(
            lambda rng: np.where(np.arange(12) == 3, 25.0, rng.normal(0, 3, (1, 20, 12))),
            id="always the same channel",
        ),
        pytest.param(
            lambda rng: np.concatenate(
                [rng.uniform(0, 640, (1, 20, 4)), rng.uniform(0, 1, (1, 20, 8))], axis=-1
            ),
            id="boxes and scores",
        ),
    ],
)
def test_rows_of_other_values_hold_no_winners(
    rows: Callable[[np.random.Generator], np.ndarray],
) -> None:
    rng = np.random.default_rng(0)
    values = [rows(rng).astype(np.float32) for _ in range(20)]
    (part,) = describe_outputs(_named(values)).parts
    assert (part.task, part.settings) == ("unknown", {})


def test_equal_outputs_pass_with_everything_to_spare() -> None:
    values = _named(_outputs(20, (1, 10)))
    verdict = Reference(values, BUDGETS).judge(values)
    assert verdict.passed
    assert verdict.value == 1.0
    assert verdict.spare == pytest.approx(1.0)


def test_one_sample_of_many_may_differ_but_not_two() -> None:
    values = _outputs(20, (1, 10), scale=9.0)
    reference = Reference(_named(values), BUDGETS)
    for wrong, passes in ((0, True), (1, True), (2, False)):
        got = [-value if i < wrong else value for i, value in enumerate(values)]
        verdict = reference.judge(_named(got))
        assert verdict.passed is passes
        assert verdict.metric == "top1_agreement"
        assert verdict.value == pytest.approx(1 - wrong / 20)
        assert verdict.forgiven is (wrong > 0)


def test_one_integer_of_many_samples_may_differ_as_one_decision_may() -> None:
    expected: list[Outputs] = [{"label": np.array([number % 5])} for number in range(20)]
    got: list[Outputs] = [{"label": np.array([9])}, *expected[1:]]
    verdict = Reference(expected, BUDGETS).judge(got)
    assert (verdict.metric, verdict.passed, verdict.forgiven) == ("top1_agreement", True, True)


def test_a_share_of_exactly_the_budget_needs_no_forgiveness() -> None:
    values = _outputs(20, (1, 10), scale=9.0)
    got = [-values[0], *values[1:]]
    verdict = Reference(_named(values), {"classification": AccuracyBudget(keep=0.975)}).judge(
        _named(got)
    )
    assert (verdict.value, verdict.passed, verdict.forgiven) == (0.95, True, False)


@pytest.mark.parametrize("scale", [1.0, -9.0])
def test_where_nothing_must_be_kept_any_value_passes_and_the_budget_is_a_number(
    scale: float,
) -> None:
    values = _outputs(20, (1, 3), scale=9.0)
    known = declare(y="values")
    reference = Reference(_named(values), {"values": AccuracyBudget(keep=0.0)}, known)
    verdict = reference.judge(_named([scale * value for value in values]))
    assert verdict.passed
    assert -200.0 < verdict.budget <= min(verdict.value, 0.0)


def test_of_candidates_with_equal_metrics_the_quieter_one_is_better() -> None:
    values = _outputs(20, (1, 10), scale=9.0)
    reference = Reference(_named(values), BUDGETS)
    quiet, loud = (reference.judge(_named([value * size for value in values])) for size in (1.1, 2))
    assert quiet.value == loud.value == 1.0
    assert quiet.noise < loud.noise
    assert quiet.beats(loud)
    assert not loud.beats(quiet)
    assert not quiet.beats(quiet)


def test_what_is_selected_adds_nothing_to_the_noise() -> None:
    boxes = _outputs(20, (1, 4, 4), scale=90.0)
    expected: list[Outputs] = [{"boxes": value, "kept": value[0, :2]} for value in boxes]
    got: list[Outputs] = [{"boxes": value, "kept": value[0, 2:]} for value in boxes]
    reference = Reference(expected, BUDGETS, declare(boxes="values", kept="selection"))
    assert reference.judge(got).noise == 0.0, "what it is computed from is the same"
    assert reference.measure(got)[1].measures[0].value == 0.0


def test_every_character_of_a_line_counts() -> None:
    values = [_softmax(value) for value in _outputs(10, (1, 6, 5))]
    got = [value.copy() for value in values]
    got[0][0, 3] = got[0][0, 3][::-1]
    got[1][0, 2] = np.roll(got[1][0, 2], 1)
    verdict = Reference(_named(values), BUDGETS).judge(_named(got))
    assert verdict.metric == "sequence_agreement"
    assert verdict.value == pytest.approx(58 / 60)
    assert not verdict.passed


def test_a_constant_answer_fails_though_its_cosine_is_high() -> None:
    rng = np.random.default_rng(0)
    values = [(10 + rng.normal(0, 1, (1, 1))).astype(np.float32) for _ in range(30)]
    stuck = [np.full((1, 1), 10, dtype=np.float32)] * 30
    reference = Reference(_named(values), BUDGETS)
    assert reference.errors(_named(stuck))[0].cosine > 0.99
    verdict = reference.judge(_named(stuck))
    assert verdict.metric == "explained_variance"
    assert not verdict.passed


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_outputs_that_are_not_finite_fail(broken: float) -> None:
    values = _outputs(12, (1, 10), scale=9.0)
    got = [np.full_like(value, broken) for value in values]
    verdict = Reference(_named(values), BUDGETS).judge(_named(got))
    assert not verdict.passed
    assert verdict.value == 0.0


def test_outputs_of_another_shape_fail() -> None:
    verdict = Reference(_named(_outputs(12, (1, 10))), BUDGETS).judge(_named(_outputs(12, (1, 9))))
    assert not verdict.passed


def test_a_users_metric_is_judged_against_the_float_models_value() -> None:
    def recall(run: Run) -> float:
        return float(run({})["y"])

    def at(value: float) -> Run:
        return lambda feeds: {"y": np.array(value)}

    good = judge_metric(recall, at(0.895), 0.9, BUDGETS)
    bad = judge_metric(recall, at(0.85), 0.9, BUDGETS)
    assert (good.passed, bad.passed) == (True, False)
    assert bad.budget == pytest.approx(0.891)
    assert bad.metric.endswith("recall")


def test_a_metric_that_raises_is_named_with_its_line() -> None:
    def raising(run: Run) -> float:
        raise KeyError("labels")

    with pytest.raises(BuildError, match=r"raised KeyError: 'labels'") as caught:
        evaluate_metric(raising, lambda feeds: {})
    assert "test_accuracy.py, line" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), "much", None])
def test_a_metric_that_returns_nonsense_is_refused(value: object) -> None:
    with pytest.raises(BuildError, match="which is not a finite number"):
        evaluate_metric(lambda run: value, lambda feeds: {})  # type: ignore[arg-type, return-value]


def _noisy(values: list[np.ndarray], noise: float, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        (value + rng.normal(0, noise, value.shape) * np.std(value)).astype(np.float32)
        for value in values
    ]


def test_a_probe_tolerates_another_rounding_and_refuses_a_broken_model() -> None:
    values = _outputs(30, (1, 10))
    limits = _derive_limits(_named(values), _named(_noisy(values, 0.05, 1)))
    golden = values[:6]

    def is_right(got: list[np.ndarray]) -> bool:
        return compare_outputs(_named(golden), _named(got), *limits).right

    assert is_right(_noisy(golden, 0.06, 2))
    assert not is_right([np.roll(value, 1, axis=-1) for value in golden])
    assert not is_right([np.zeros_like(value) for value in golden])
    assert not is_right([-value for value in golden])
    assert not is_right(_outputs(6, (1, 10), seed=9))
    assert not is_right([3 * value for value in golden])
    assert not is_right([np.full_like(value, np.nan) for value in golden])


@pytest.mark.parametrize(("times", "is_right"), [(1.9, True), (2.6, False)])
def test_a_probe_tolerates_an_error_twice_as_large_by_either_measure(
    times: float, is_right: bool
) -> None:
    values = _outputs(30, (1, 400))
    noisy = _noisy(values, 0.1, 1)
    tolerance = _derive_limits(_named(values), _named(noisy))[0]["y"]
    worse = [a + times * (b - a) for a, b in zip(values, noisy, strict=True)]
    (error,) = Reference(_named(values), BUDGETS).errors(_named(worse))
    assert (error.worst_cosine >= tolerance.cosine_min) == is_right
    assert (error.worst_nrmse <= tolerance.nrmse_max) == is_right


def test_samples_of_one_value_tolerate_what_they_are_off_together() -> None:
    values = [np.array([[value]], np.float32) for value in np.linspace(0.2, 3.0, 12)]
    noisy = [value * (1.3 if number % 2 else 0.7) for number, value in enumerate(values)]
    limits = _derive_limits(_named(values), _named(noisy))
    assert compare_outputs(_named(values), _named(noisy), *limits).right


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_device_must_keep_what_the_build_kept_on_the_golden_samples_that_it_computes(
    count: int,
) -> None:
    values = _outputs(60, (1, 10), scale=9.0)
    changed = [-value if number < 8 else value for number, value in enumerate(values)]
    limits = _derive_limits(_named(values), _named(changed))[1]
    assert Reference(_named(values), BUDGETS).measure(_named(changed))[0].value > 0.8
    golden, there = _named(values[:count]), _named(changed[:count])
    assert compare_outputs(golden, there, {}, limits).right
    kept = _derive_limits(_named(values), _named(values))[1]
    assert [one.keep for one in kept] == [0.875]


def test_even_a_coarse_variant_has_a_tolerance_that_zeros_fail() -> None:
    values = _outputs(30, (1, 10))
    limits = _derive_limits(_named(values), _named(_noisy(values, 0.6, 1)))
    zeros = [np.zeros_like(value) for value in values[:6]]
    assert not compare_outputs(_named(values[:6]), _named(zeros), *limits).right


def test_every_integer_of_many_counts_and_the_output_is_named() -> None:
    rng = np.random.default_rng(0)
    points = [rng.integers(0, 5, (1, 8, 8)) for _ in range(20)]
    boxes = _outputs(20, (1, 3, 4))
    expected = [{"classes": a, "boxes": b} for a, b in zip(points, boxes, strict=True)]
    got = [{**sample, "classes": sample["classes"].copy()} for sample in expected]
    for sample in got[:10]:
        sample["classes"][0, 0, 0] += 1
    verdict = Reference(expected, BUDGETS).judge(got)
    assert verdict.passed
    assert verdict.what == "sequence_agreement of output 'classes'"
    assert verdict.value == pytest.approx(1 - 10 / (20 * 64))
    for sample in got:
        sample["classes"][0, 1, 1] += 1
    assert not Reference(expected, BUDGETS).judge(got).passed


def test_a_selection_of_another_length_agrees_in_nothing() -> None:
    expected: list[Outputs] = [{"kept": np.arange(6).reshape(2, 3)} for _ in range(20)]
    longer: list[Outputs] = [{"kept": np.arange(9).reshape(3, 3)} for _ in range(19)]
    got = [expected[0], *longer]
    verdict = Reference(expected, BUDGETS).judge(got)
    assert verdict.metric == "sequence_agreement"
    assert verdict.value == pytest.approx(1 / 20)


def test_scores_that_always_decide_alike_are_judged_by_their_values() -> None:
    rng = np.random.default_rng(0)
    speed_and_angle = [np.array([[100 + a, a]], np.float32) for a in rng.normal(0, 1, 20)]
    angle_lost = [np.array([[100, 0]], np.float32)] * 20
    verdict = Reference(_named(speed_and_angle), BUDGETS).judge(_named(angle_lost))
    assert verdict.metric == "explained_by_column"
    assert not verdict.passed
    assert verdict.remarks == (
        "The float model's decision in output 'y' is 0 in 20 of 20 samples, so that agreement says "
        "little: its values are judged.",
    )


@pytest.mark.parametrize(("error", "passes"), [(0.0, True), (0.002, True), (0.012, False)])
def test_probabilities_that_never_decide_otherwise_keep_their_skill(
    error: float, passes: bool
) -> None:
    rng = np.random.default_rng(0)

    def of(shares: np.ndarray) -> list[Outputs]:
        return _named([np.array([[1 - share, share]], np.float32) for share in shares])

    shares = rng.uniform(0.0, 0.2, 40)
    verdict = Reference(of(shares), BUDGETS).judge(of(shares + error * rng.choice([-1, 1], 40)))
    assert verdict.metric in ("auc", "likelihood")
    assert verdict.passed is passes
    assert verdict.remarks[0].endswith(
        "says little: its probabilities are judged. Give samples of other classes too."
    )


def test_a_constant_distribution_fails_though_each_of_its_decisions_is_right() -> None:
    shares = np.linspace(0.0, 0.45, 40)
    values = [np.array([[1 - share, share, 0]], np.float32) for share in shares]
    constant = [np.array([[0.8, 0.2, 0]], np.float32)] * 40
    verdict = Reference(_named(values), BUDGETS).judge(_named(constant))
    assert verdict.metric == "likelihood"
    assert not verdict.passed


def test_a_sequence_that_nearly_always_decides_alike_is_judged_by_its_probabilities() -> None:
    rng = np.random.default_rng(0)
    shares = np.where(rng.random((40, 100)) < 0.01, 0.9, 0.05)
    values = [np.stack([1 - row, row], axis=-1)[None].astype(np.float32) for row in shares]
    never = [np.tile(np.array([0.95, 0.05], np.float32), (1, 100, 1))] * 40
    verdict = Reference(_named(values), BUDGETS).judge(_named(never))
    assert verdict.metric == "likelihood", "99 of 100 decisions are right"
    assert not verdict.passed
    assert " of 4000 rows, so that agreement says little: its prob" in verdict.remarks[0]
    assert Reference(_named(values), BUDGETS).judge(_named(values)).passed


def test_a_distribution_of_many_classes_is_judged_by_the_few_that_move() -> None:
    values = [_softmax(value + 25 * np.eye(1000)[:1]) for value in _outputs(40, (1, 1000))]
    got = [np.roll(value, 1, axis=-1) * 0.1 + value * 0.9 for value in values]
    verdict = Reference(_named(values), BUDGETS).judge(_named(got))
    assert verdict.metric == "explained_variance", "each decision is right, and a tenth has moved"
    assert not verdict.passed


def test_a_distribution_that_always_decides_alike_is_told() -> None:
    values = [_softmax(value + np.array([[12, 0, 0]])) for value in _outputs(20, (1, 3))]
    verdict = Reference(_named(values), BUDGETS).judge(_named(values))
    assert verdict.value == 1.0, "nothing is lost of what hardly moves"
    assert verdict.remarks[0].endswith("are judged. Give samples of other classes too.")
