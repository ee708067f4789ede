"""A build with a fleet's measurements of the previous release."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from edgepack.bundle.feedback import FORMAT, Evidence, Feedback
from edgepack.packager import build
from tests.simulators import warm_programs

CPU = "CPUExecutionProvider"


def measured(variant: str, provider: str, ms: float, chosen: int) -> Evidence:
    return Evidence(
        version="0.9.0",
        digest="aa",
        variant=variant,
        provider=provider,
        hardware_class="board <b>",
        probed=8,
        right=8,
        probe_ms=ms,
        chosen=chosen,
    )


@pytest.fixture
def feedback(tmp_path: Path) -> Path:
    path = tmp_path / "feedback.json"
    evidence = (
        measured("fp32", CPU, 2.0, 1),
        measured("cpu", CPU, 1.0, 7),
        measured("qnn-htp", "QNNExecutionProvider", 3.0, 0),
    )
    path.write_bytes(FORMAT.encode(Feedback(model="small", at=1.0, evidence=evidence)))
    return path


def test_a_tighter_budget_is_proposed_and_none_is_changed(material: Path, tmp_path: Path) -> None:
    path = tmp_path / "feedback.json"
    seen = msgspec.structs.replace(
        measured("cpu", CPU, 1.0, 7),
        metric="top1_agreement",
        budget=0.98,
        shadow_count=1000,
        shadow_agreed=950,
        shadow_devices=8,
        shadow_mean=0.95,
        shadow_most=0.97,
        drift=0.31,
        worst_drift=0.7,
    )
    path.write_bytes(FORMAT.encode(Feedback(model="small", at=1.0, evidence=(seen,))))
    words = ("build", "small.onnx", "--profile", "cpu", "--calibration", "samples.npz")
    done = warm_programs.run(
        (
            *(sys.executable, "-m", "edgepack.cli", *words, "--key", "release.key"),
            *("--feedback", path, "-o", tmp_path / "small-1.0.0"),
        ),
        cwd=material,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cpu may need a tighter budget: on board <b>, 95.0% of shadow inferences" in done.stdout
    assert "\nclassification = { keep = 0.996 }\n" in done.stdout
    report = json.loads((tmp_path / "small-1.0.0" / "report.json").read_text())
    assert [proposal["keep"] for proposal in report["proposals"]] == [0.996]
    assert {variant["accuracy"]["budget"] for variant in report["variants"]} != {0.992}
    page = (tmp_path / "small-1.0.0" / "report.html").read_text()
    assert "<pre>classification = { keep = 0.996 }</pre>" in page
    assert "0.31<small>0.7 at worst</small>" in page
    assert "950 of 1,000</td>" in page


def test_what_lost_is_left_out_and_what_serves_most_comes_first(
    material: Path, tmp_path: Path, feedback: Path
) -> None:
    result = build(
        material / "small.onnx",
        profiles=["qnn-htp", "fp32", "cpu"],
        feedback=feedback,
        calibration=material / "samples.npz",
        key=material / "release.key",
        output=tmp_path / "small-1.0.0",
    )
    assert [variant.profile for variant in result.report.variants] == ["cpu", "fp32"]
    (note,) = [note for note in result.report.notes if "qnn-htp" in note]
    assert note == (
        "qnn-htp is left out: it serves on none of the 8 devices that tried it: 3 ms beside 1 ms "
        "on the CPU of board <b>."
    )
    page = result.report_html.read_text()
    assert "What devices measured of earlier releases" in page
    assert "board &lt;b&gt;" in page
    kept = json.loads((tmp_path / "small-1.0.0" / "report.json").read_text())
    assert [row["variant"] for row in kept["evidence"]] == ["fp32", "cpu", "qnn-htp"]
    statement = json.loads((tmp_path / "small-1.0.0" / "provenance.json").read_text())
    read = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "feedback.json" in [dependency["name"] for dependency in read]
