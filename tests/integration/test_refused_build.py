"""A build rejected by gates leaves its report; a build published all the same stays marked."""

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.errors import BuildError
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.reports.report import Report
from tests.simulators import warm_programs
from tests.simulators.device import Device
from tests.unit.packager_io.models import save, small_cnn, write_stack

_PROFILE = """[profile]
name = "impossible"
extends = "cpu"
[gates]
float_instead = []
[gates.accuracy.any]
keep = 0.9999999
"""


def _request(folder: Path) -> BuildRequest:
    save(small_cnn(), folder / "small.onnx")
    write_stack(folder / "samples.npz", 40)
    key, _ = write_key_pair(generate_key(), folder / "release")
    (folder / "impossible.toml").write_text(_PROFILE)
    return BuildRequest(
        model=folder / "small.onnx",
        output=folder / "out" / "small-1.0.0.edgepack",
        name="small",
        version="1.0.0",
        release=1_000_000,
        profiles=(str(folder / "impossible.toml"),),
        key=key,
        calibration=str(folder / "samples.npz"),
    )


def test_the_error_names_the_report_and_the_report_has_the_curve(tmp_path: Path) -> None:
    request = _request(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(BuildError, match="impossible") as caught:
        build(request, lambda *_: None)
    html = tmp_path / "out" / "small-1.0.0.edgepack.report.html"
    assert f"{html} tells what was tried" in (caught.value.remedy or "")
    assert html.exists()
    assert not request.output.exists()
    report = msgspec.json.decode(html.with_suffix(".json").read_bytes(), type=Report)
    assert report.variants == ()
    (refused,) = report.refused
    assert refused.best is not None
    assert refused.best.accuracy.value < refused.best.accuracy.budget
    assert len(refused.best.attempts) > 1
    assert [attempt.is_best for attempt in refused.best.attempts].count(True) == 1
    assert refused.best.sensitive_nodes
    assert refused.best.inspection is not None
    assert refused.best.inspection.layers
    assert refused.best.inspection.ranges[0].seen_high > refused.best.inspection.ranges[0].seen_low
    page = html.read_text()
    assert "No bundle was made: the profile was refused." in page
    assert refused.best.sensitive_nodes[0].name in page


def test_the_report_of_a_bundle_that_is_there_stays(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), output=tmp_path / "small-1.0.0", replace=True)
    request.output.mkdir()
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        (request.output / name).write_text("of a bundle")
    older = tmp_path / "small-1.0.0.report.html"
    older.write_text("its report")
    with pytest.raises(BuildError) as caught:
        build(request, lambda *_: None)
    assert "small-1.0.0.refused.report.html tells" in (caught.value.remedy or "")
    assert older.read_text() == "its report"
    assert (request.output / MANIFEST_FILE).read_text() == "of a bundle"


def test_what_was_built_degraded_is_refused_by_the_agent_unless_its_policy_allows_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "out").mkdir()
    built = build(replace(_request(tmp_path), allow_degraded=True), lambda *_: None)
    (variant,) = built.report.variants
    assert variant.degraded
    assert any(note.startswith("Published although: ") for note in variant.notes)

    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", tmp_path / "release.pub")
    install = [sys.executable, "-m", "edgepack.agent.cli", "install", str(built.output)]
    install += ["--config", str(device.config), "--soak", "0"]
    refused = warm_programs.run(install, capture_output=True, text=True, timeout=400)
    assert refused.returncode == 1
    assert "degraded" in refused.stderr

    settings = device.config.read_text()
    device.config.write_text(settings.replace("[trust]", "[trust]\nallow_degraded_unsafe = true"))
    allowed = warm_programs.run(install, capture_output=True, text=True, timeout=400)
    assert allowed.returncode == 0, allowed.stderr
    assert "active    small 1.0.0" in allowed.stdout
