"""A build that is given what a fleet measured of the release before."""

import json
from pathlib import Path

import pytest

from edgepack.bundle.feedback import FORMAT, Evidence, Feedback
from edgepack.packager import build

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
