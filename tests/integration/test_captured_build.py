"""From a device's inputs to the next build: inputs captured, exported, used for calibration."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.serving import capture
from edgepack.agent.serving.model import open_model
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager import BuildResult, build
from tests.simulators import warm_programs
from tests.simulators.device import Device
from tests.unit.packager_io.models import save, small_cnn, write_stack


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a model, samples, a key pair and a first bundle."""
    folder = tmp_path_factory.mktemp("material")
    save(small_cnn(batch=1), folder / "small.onnx")
    write_stack(folder / "samples.npz", 40)
    write_key_pair(generate_key(), folder / "release")
    (folder / "small.toml").write_text('[outputs.scores]\ntask = "classification"\n')
    make(folder, "small-1.0.0", "fp32")
    return folder


def make(material: Path, output: str, profile: str, *captured: Path) -> BuildResult:
    return build(
        material / "small.onnx",
        profiles=[profile],
        calibration=material / "samples.npz",
        captured=captured,
        config=material / "small.toml",
        prefer="size",
        key=material / "release.key",
        output=material / output,
    )


def run_agent(folder: Path, *words: str | Path) -> str:
    done = warm_programs.run(
        [sys.executable, "-m", "edgepack.agent.cli", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def serve(material: Path, tmp_path: Path, *, settings: str) -> Device:
    """Return a device with an application that fed twenty pictures of twice the brightness."""
    device = Device(tmp_path, "mqtt://127.0.0.1:1", material / "release.pub")
    with device.config.open("a") as config:
        config.write(settings)
    words = ("install", material / "small-1.0.0", "--config", device.config, "--soak", "0")
    run_agent(tmp_path, *words)
    rng = np.random.default_rng(3)
    with open_model("small", device.state_dir, threads=1) as model:
        for _ in range(20):
            model.run({"images": 2 * rng.standard_normal((1, 3, 8, 8)).astype(np.float32)})
            model._here().keeper.write()
    return device


@pytest.fixture
def captured(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    device = serve(material, tmp_path / "device", settings="\n[capture]\nsamples = 12\n")
    told = run_agent(tmp_path, "samples", "small", "-o", "captured", "--config", device.config)
    assert told.startswith("12 samples of small in captured\n")
    run_agent(tmp_path, "remove", "small", "--config", device.config)
    assert not list((device.state_dir / "captured").glob("*.npz")), "they go with the model"
    return tmp_path / "captured"


def test_what_a_device_captured_widens_the_ranges_and_is_told_with_its_digest(
    material: Path, captured: Path
) -> None:
    before = make(material, "before-1.1.0", "cpu")
    result = make(material, "after-1.1.0", "cpu", captured)
    samples, without = result.report.samples, before.report.samples
    assert (samples.captured_count, without.captured_count) == (12, 0)
    assert samples.calibration_count == without.calibration_count + 12
    assert samples.held_out_count == without.held_out_count, "nothing captured judges"
    note = "12 samples that devices captured were added to those for ranges, sha256:{}."
    assert note.format(samples.captured_sha256[:12]) in result.report.notes
    assert f"devices captured 12 (<code>sha256:{samples.captured_sha256}" in (
        result.report_html.read_text()
    )
    statement = json.loads((material / "after-1.1.0" / "provenance.json").read_text())
    definition = statement["predicate"]["buildDefinition"]
    (read,) = [e for e in definition["resolvedDependencies"] if e["name"] == "captured samples"]
    assert read["digest"]["sha256"] == samples.captured_sha256
    assert read["annotations"]["count"] == 12
    assert definition["externalParameters"]["captured"] == ["captured"]
    changed = [
        (material / name / "model" / "cpu" / "model.onnx").read_bytes()
        for name in ("before-1.1.0", "after-1.1.0")
    ]
    assert changed[0] != changed[1], "ranges are wider"


def test_what_was_given_already_is_not_added_and_random_samples_get_none(
    material: Path, tmp_path: Path
) -> None:
    images = np.load(material / "samples.npz")["images"]
    again = tmp_path / "again"
    again.mkdir()
    for number, image in enumerate(images[:5]):
        np.savez(again / f"{number}.npz", images=image[None])
    result = make(material, "again-1.0.0", "fp32", again)
    assert result.report.samples.captured_count == 0
    with pytest.raises(BuildError, match="captured samples need given samples"):
        build(
            material / "small.onnx",
            profiles=["fp32"],
            calibration="random:8",
            captured=[again],
            key=material / "release.key",
            output=tmp_path / "random-1.0.0",
        )


def test_a_huge_value_from_a_device_stops_the_build_and_its_file_is_named(
    material: Path, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    np.savez(hostile / "evil.npz", images=np.full((1, 3, 8, 8), 3e38, np.float32))
    with pytest.raises(BuildError, match="holds NaN on a calibration sample") as refused:
        make(material, "huge-1.0.0", "vitisai-xint8", hostile)
    assert "evil.npz" in str(refused.value.found_in)


def test_a_device_that_was_not_asked_keeps_nothing(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    device = serve(material, tmp_path, settings="")
    assert not (device.state_dir / "captured").exists()
    assert not list(device.state_dir.rglob("*.npz.*"))
    kept = {path.relative_to(device.state_dir).parts[0] for path in device.state_dir.rglob("*.npz")}
    assert kept <= {"slots"}, "golden samples alone"
