"""What a refusal says, and whether a quantized model pays beside the float one."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.bundle.manifest import Placement
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.checks import (
    check_accuracy,
    check_placement,
    check_size,
    least_speedup,
)
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import Preference, Profile
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.candidates import describe_search
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_search.toys import ToyMaker, search_toy


@pytest.mark.parametrize(
    ("prefer", "size_share", "asked"),
    [
        ("speed", 0.3, 1.05),
        ("speed", 0.9, 1.05),
        ("balanced", 0.3, 1 / 1.1),
        ("balanced", 0.9, 1.1),
        ("size", 0.3, None),
        ("size", 0.9, 1.1),
        ("device", 0.9, None),
    ],
)
def test_what_is_preferred_says_how_fast_a_quantized_model_must_be(
    prefer: Preference, size_share: float, asked: float | None
) -> None:
    assert least_speedup(size_share, prefer) == asked


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


def test_a_refusal_after_a_search_that_was_cut_short_offers_more_time(tmp_path: Path) -> None:
    expected: list[Outputs] = [{"y": np.array([[float(number)]])} for number in range(20)]
    profile = load_profile("cpu")
    verdict = Reference(expected, profile.gates.accuracy).judge(expected[::-1])
    found = search_toy(ToyMaker({"a": 1.0}, {"plain": 1.0}), tmp_path / "toy")
    offered = []
    for is_cut_short in (True, False):
        known = describe_search(replace(found, is_cut_short=is_cut_short))
        refusal = check_accuracy(profile, verdict, 20, known)
        assert refusal is not None
        offered.append(refusal.remedy.startswith("a longer --budget, or none: "))
    assert offered == [True, False]


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
    said = "[outputs.face] with task = 'embedding' (or 'values', 'ignored') in edgepack.toml if it"
    assert said in refusal.remedy


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("fp32", ""),
        ("vitisai-bf16", ""),
        ("cpu", "a profile with more bits (16-bit activations, fp32); more calibration samples, "),
        ("cpu-int4", "a profile with more bits (8-bit weights, fp32); more calibration samples, "),
        ("qnn-htp", "--profile fp32, which lowers nothing and runs on a device's CPU; more calib"),
        ("tensorrt-fp16", "--profile fp32, which lowers nothing and runs on a device's CPU; max_f"),
    ],
)
def test_a_refusal_offers_only_what_keeps_more_than_the_profile_does(
    name: str, offered: str
) -> None:
    expected: list[Outputs] = [{"y": np.array([[float(number)]])} for number in range(20)]
    profile = load_profile(name)
    verdict = Reference(expected, profile.gates.accuracy).judge(expected[::-1])
    refusal = check_accuracy(profile, verdict, 20, None)
    assert refusal is not None
    assert refusal.remedy.startswith(offered or "a lower budget in [gates.accuracy]")
    assert ("max_float_share" in refusal.remedy) == bool(offered)


@pytest.mark.parametrize("name", ["cpu", "cpu-int4", "qnn-htp"])
def test_where_nothing_was_lowered_no_profile_that_lowers_less_is_offered(name: str) -> None:
    expected: list[Outputs] = [{"y": np.array([[float(number)]])} for number in range(20)]
    profile = load_profile(name)
    verdict = Reference(expected, profile.gates.accuracy).judge(expected[::-1])
    refusal = check_accuracy(profile, verdict, 20, None, is_lowered=False)
    assert refusal is not None
    assert refusal.remedy.startswith("a lower budget in [gates.accuracy]")


def test_an_output_s_name_is_quoted_where_toml_asks_for_it() -> None:
    rng = np.random.default_rng(0)
    faces = [rng.normal(0, 20, (1, 64)) for _ in range(20)]
    expected: list[Outputs] = [{"head/face.0": face} for face in faces]
    got: list[Outputs] = [{"head/face.0": -face} for face in faces]
    profile = load_profile("cpu")
    verdict = Reference(expected, profile.gates.accuracy).judge(got)
    refusal = check_accuracy(profile, verdict, 20, None)
    assert refusal is not None
    assert '[outputs."head/face.0"] with task' in refusal.remedy


def _profile(*, placement_min: float = 0.0, size_ratio_max: float = 0.0) -> Profile:
    profile = load_profile("qnn-htp")
    gates = replace(profile.gates, placement_min=placement_min, size_ratio_max=size_ratio_max)
    return replace(profile, gates=gates)


@pytest.mark.parametrize(
    ("taken", "total", "verified"),
    [(8, 10, True), (10, 10, True), (0, 10, False), (0, 0, True)],
    ids=["just enough", "all", "not run here", "a model without nodes"],
)
def test_a_provider_that_takes_enough_or_could_not_be_asked_is_no_reason_to_refuse(
    taken: int, total: int, verified: bool
) -> None:
    placement = Placement(provider="NPU", taken=taken, total=total, verified=verified)
    assert check_placement(_profile(placement_min=0.8), placement) is None


def test_a_provider_that_takes_too_little_is_refused_with_what_it_left_most_of_first() -> None:
    left = {"Add": 1, "Where": 2, "Abs": 1}
    placement = Placement(provider="NPU", taken=7, total=11, left=left, verified=True)
    refusal = check_placement(_profile(placement_min=0.8), placement)
    assert refusal is not None
    assert refusal.problem.startswith("NPU took 7 of 11 nodes (64%), and profile 'qnn-htp' asks")
    assert refusal.found_in == "left to the CPU: 2 Where, 1 Abs, 1 Add"


def test_each_reason_that_the_provider_gave_is_told_once_with_a_node_that_has_it() -> None:
    placement = Placement(provider="NPU", taken=1, total=9, left={"Gemm": 2}, verified=True)
    left = [
        UnassignedNode(name="g1/dq", op="DequantizeLinear", reason="only support alpha=1.0."),
        UnassignedNode(name="g1", op="Gemm", reason="only support alpha=1.0."),
        UnassignedNode(name="g2", op="Gemm", reason="only support alpha=1.0."),
        UnassignedNode(name="silent", op="Where"),
        UnassignedNode(name="s", op="Scaler", reason="not supported"),
    ]
    refusal = check_placement(_profile(placement_min=0.8), placement, left)
    assert refusal is not None
    assert (refusal.found_in or "").splitlines()[1:] == [
        "    g1 (Gemm): only support alpha=1.0.",
        "    s (Scaler): not supported",
    ]


def test_the_size_gate_allows_what_it_says_and_not_a_byte_more() -> None:
    assert check_size(_profile(), 900, 100) is None, "this profile asks for no size"
    profile = _profile(size_ratio_max=0.5)
    assert check_size(profile, 50, 100) is None
    refusal = check_size(profile, 51, 100)
    assert refusal is not None
    assert refusal.problem == (
        "the variant takes 51 bytes, 51% of the float model's, and profile 'qnn-htp' allows 50%"
    )
