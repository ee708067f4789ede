"""What a refusal says, and whether a quantized model pays beside the float one."""

import numpy as np
import pytest

from edgepack.packager.judging.accuracy import Reference
from edgepack.packager.judging.gates import check_accuracy, is_not_worth_it
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.profile.reading import load_profile


@pytest.mark.parametrize(
    ("latency_ms", "size_share", "expected"),
    [
        (0.5, 0.3, False),
        (1.05, 0.3, False),
        (1.2, 0.3, True),
        (0.5, 0.9, False),
        (0.95, 0.9, True),
        (1.05, 0.9, True),
    ],
)
def test_a_model_that_is_hardly_smaller_must_be_clearly_faster(
    latency_ms: float, size_share: float, expected: bool
) -> None:
    assert is_not_worth_it(latency_ms, 1.0, size_share) is expected


def test_a_refusal_names_the_output_and_what_its_integers_come_from() -> None:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 9, (1, 20)) for _ in range(20)]
    expected: list[Outputs] = [
        {"labels": label, "scores": rng.normal(0, 1, (1, 20, 1))} for label in labels
    ]
    got = [{**sample, "labels": sample["labels"][:, ::-1]} for sample in expected]
    profile = load_profile("qnn-htp")
    verdict = Reference(expected, profile.gates.accuracy).judge(got)
    refusal = check_accuracy(profile, verdict, 20, None)
    assert refusal is not None
    assert "of output 'labels', and the budget is 0.9850" in refusal.problem
    assert refusal.remedy.startswith("where 'labels' comes from TopK or NonMaxSuppression, which")


def test_a_refusal_repeats_what_the_calibration_does_not_cover() -> None:
    expected: list[Outputs] = [{"y": np.array([[float(number)]])} for number in range(20)]
    profile = load_profile("cpu")
    verdict = Reference(expected, profile.gates.accuracy).judge(expected[::-1])
    beyond = "Held-out samples go beyond the calibration's range in input 'x' by 80% of it"
    refusal = check_accuracy(profile, verdict, 20, None, (beyond,))
    assert refusal is not None
    assert refusal.found_in == beyond


def test_a_refusal_says_where_decisions_are_too_much_alike_to_judge_by() -> None:
    rng = np.random.default_rng(0)
    expected: list[Outputs] = [
        {"y": np.array([[100 + shift, shift]], np.float32)} for shift in rng.normal(0, 1, 20)
    ]
    got: list[Outputs] = [{"y": np.array([[100.0, 0.0]], np.float32)}] * 20
    profile = load_profile("cpu")
    verdict = Reference(expected, profile.gates.accuracy).judge(got)
    refusal = check_accuracy(profile, verdict, 20, None)
    assert refusal is not None
    assert refusal.found_in == verdict.remarks[0]


def test_a_refused_decision_says_what_to_do_where_the_output_holds_no_scores() -> None:
    rng = np.random.default_rng(0)
    faces = [rng.normal(0, 20, (1, 64)) for _ in range(20)]
    expected: list[Outputs] = [{"face": face} for face in faces]
    got: list[Outputs] = [{"face": -face} for face in faces]
    profile = load_profile("cpu")
    verdict = Reference(expected, profile.gates.accuracy).judge(got)
    refusal = check_accuracy(profile, verdict, 20, None)
    assert refusal is not None
    said = (
        "[outputs.'face'] kind = 'embedding' (or 'values', 'ignored') in edgepack.toml if it holds"
    )
    assert said in refusal.remedy
