"""Feedback in a build: profiles that lost to the CPU everywhere are left out, the others are
ordered.
"""

from pathlib import Path

import pytest

from edgepack.bundle.feedback import FORMAT, DriftedFeature, Evidence, Feedback, read_feedback
from edgepack.bundle.metadata import Feature
from edgepack.errors import EdgepackError
from edgepack.packager.pipeline.fleet_feedback import Learnt, judge, learn, respond
from edgepack.packager.profiles.reading import load_profile

CPU, NPU = "CPUExecutionProvider", "QNNExecutionProvider"
PROFILES = [load_profile("cpu"), load_profile("qnn-htp"), load_profile("cpu-avx2")]


def entry(variant: str, provider: str, ms: float | None, **said: object) -> Evidence:
    told: dict[str, object] = {
        "version": "1.0.0",
        "digest": "aa",
        "variant": variant,
        "provider": provider,
        "hardware_class": "board",
        "probed": 6,
        "right": 6,
        "probe_ms": ms,
        **said,
    }
    return Evidence(**told)  # type: ignore[arg-type]


def judged(*evidence: Evidence) -> Learnt:
    return judge(Feedback(model="m", at=1.0, evidence=evidence), PROFILES)


def test_what_is_slower_than_the_cpu_everywhere_is_left_out() -> None:
    learnt = judged(entry("cpu", CPU, 2.0, chosen=6), entry("qnn-htp", NPU, 3.0))
    assert dict(learnt.left_out) == {
        "qnn-htp": "it serves on none of the 6 devices that tried it: 3 ms beside 2 ms on the CPU "
        "of board"
    }


def test_what_is_wrong_everywhere_is_left_out_with_the_reason() -> None:
    wrong = entry("qnn-htp", NPU, None, right=0, wrong_because="golden outputs differ")
    learnt = judged(entry("cpu", CPU, 2.0, chosen=6), wrong)
    assert "wrong on board (golden outputs differ)" in learnt.left_out["qnn-htp"]


@pytest.mark.parametrize(
    "kept",
    [
        entry("qnn-htp", NPU, 3.0, hardware_class="other", chosen=1),
        entry("qnn-htp", NPU, 1.0, hardware_class="other"),
        entry("qnn-htp", NPU, None, hardware_class="other"),
    ],
    ids=["serves somewhere", "faster somewhere, if not chosen yet", "not timed somewhere"],
)
def test_what_may_win_on_one_kind_of_hardware_is_built(kept: Evidence) -> None:
    losing = entry("qnn-htp", NPU, 3.0)
    assert not judged(entry("cpu", CPU, 2.0, chosen=6), losing, kept).left_out


def test_few_devices_and_simulators_prove_nothing() -> None:
    cpu = entry("cpu", CPU, 2.0, chosen=6)
    assert not judged(cpu, entry("qnn-htp", NPU, 3.0, probed=4, right=4)).left_out
    assert not judged(cpu, entry("qnn-htp", NPU, 300.0, is_simulator=True)).left_out


def test_nothing_is_left_out_where_no_profile_runs_on_the_cpu() -> None:
    feedback = Feedback(
        model="m",
        at=1.0,
        evidence=(entry("cpu", CPU, 2.0), entry("qnn-htp", NPU, 3.0)),
    )
    assert not judge(feedback, [load_profile("qnn-htp")]).left_out


def test_how_many_devices_each_serves_is_counted_over_hardware() -> None:
    learnt = judged(
        entry("cpu", CPU, 2.0, chosen=2),
        entry("cpu", CPU, 2.0, chosen=3, hardware_class="other"),
        entry("cpu-avx2", CPU, 1.0, chosen=9),
    )
    assert learnt.serves_on == {"cpu": 5, "cpu-avx2": 9}


def test_feedback_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "feedback.json"
    path.write_bytes(FORMAT.encode(Feedback(model="doors", at=1.0)))
    with pytest.raises(EdgepackError, match="the feedback is of 'doors', and this builds 'gate'"):
        learn(path, "gate", PROFILES)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"nonsense", "not feedback of a fleet"),
        (b'{"v": 1, "model": 3}', "not feedback of a fleet"),
        (b'{"v": 9, "model": "m", "at": 1.0}', "is of version 9.0"),
        (b'{"v": 1, "model": "\x1b[2J"}', "not feedback of a fleet"),
    ],
)
def test_damaged_and_newer_files_are_errors(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "feedback.json"
    path.write_bytes(content)
    with pytest.raises(EdgepackError, match=problem) as caught:
        read_feedback(path)
    assert "\x1b" not in str(caught.value)


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "feedback.json"
    path.write_bytes(b'{"v": 1, "minor": 7, "model": "m", "at": 1.0, "drift": []}')
    assert read_feedback(path) == Feedback(model="m", at=1.0)


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(EdgepackError, match="cannot be read") as caught:
        read_feedback(tmp_path / "none.json")
    assert "edgepack fleet feedback" in (caught.value.remedy or "")


def test_a_build_responds_to_drift_by_its_own_samples() -> None:
    def drifted(words: str, difference: float, devices: int = 3) -> DriftedFeature:
        return DriftedFeature(
            words=words, devices=devices, difference=difference, now=0.1, build=0.5
        )

    old = entry(
        "cpu", CPU, 2.0, digest="o", version="0.9.0", drifted=(drifted("level of 'old'", 9.0),)
    )
    new = entry(
        "cpu",
        CPU,
        2.0,
        drifted=(drifted("level of 'x'", 4.0), drifted("edges of 'x'", 0.1)),
        loss=0.2,
    )
    other = entry(
        "cpu", CPU, 2.0, hardware_class="pi-4", drifted=(drifted("level of 'x'", 2.0, 1),)
    )
    simulated = entry(
        "cpu", CPU, 2.0, is_simulator=True, digest="s", drifted=(drifted("level of 's'", 9.0),)
    )
    learnt = judge(Feedback(model="m", at=0.0, evidence=(simulated, new, other, old)), ())
    assert [(one.words, one.devices) for one in learnt.drifted] == [("level of 'x'", 4)]

    def first(mean: float, captured: int) -> str:
        level = Feature(
            tensor="x", name="level", words="level of 'x'", mean=mean, spread=0.05, samples=9
        )
        lines = respond(learnt, (level,), captured, "m")
        assert len(lines) == 2
        assert "20%" in lines[1]
        assert "4 devices reported drift in 1.0.0: level of 'x' is 0.1 and was 0.5" in lines[0]
        return lines[0]

    assert "samples have 0.12, so ranges and verdict hold" in first(0.12, 0)
    assert "samples have 0.01, so ranges and verdict hold" in first(0.01, 0), "means lag behind"
    assert "57 captured samples widen the ranges" in first(0.5, 57)
    assert "edgepack fleet capture m" in first(0.5, 0)
    assert respond(Learnt(), (), 0, "m") == []
