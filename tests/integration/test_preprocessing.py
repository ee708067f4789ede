"""Pictures that are not prepared as in training: a warning in the first lines, and the report."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from edgepack.packager import build
from edgepack.packager.pipeline.publication import BuildResult

SIZES = {"cls": (48, 192), "rec": (48, 320), "det": (160, 160)}


def _model(kind: str) -> Path:
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None or found.origin is None:
        pytest.skip("rapidocr_onnxruntime is not installed")
    (path,) = (Path(found.origin).parent / "models").glob(f"*_{kind}_infer.onnx")
    return path


def _draw(folder: Path, kind: str) -> None:
    """Write 12 lines of text on paper of several colours."""
    rng = np.random.default_rng(0)
    height, width = SIZES[kind]
    folder.mkdir()
    for number in range(12):
        paper = tuple(int(value) for value in rng.integers(120, 256, 3))
        picture = Image.new("RGB", (width, height), paper)
        for top in range(4, height - 16, 40):
            words = " ".join(map(str, rng.integers(0, 10_000, 8)))
            ImageDraw.Draw(picture).text((4, top), words, fill=(10, 10, 10))
        picture.save(folder / f"{number:02}.png")


def _config(folder: Path, kind: str, settings: str) -> Path:
    path = folder / "edgepack.toml"
    path.write_text(f'[inputs.x]\nkind = "image"\nsize = {list(SIZES[kind])}\n{settings}\n')
    return path


def _build(kind: str, settings: str, key: Path, folder: Path) -> BuildResult:
    _draw(folder / "samples", kind)
    height, width = SIZES[kind]
    return build(
        _model(kind),
        profiles=["fp32"],
        calibration=folder / "samples",
        config=_config(folder, kind, settings),
        shapes={"x": (1, 3, height, width)},
        key=key,
        name=kind,
        version="1.0.0",
        output=folder / "bundle",
    )


_INIT = "mean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]"
# rapidocr_onnxruntime prepares pictures so for all three.
_TRAINED = "mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]"
_IMAGENET = "mean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]"
_RAW = "scale = 1.0"


@pytest.mark.parametrize(
    ("kind", "settings", "warning"),
    [
        ("cls", _INIT, "none below 0"),
        ("cls", _RAW, "standard deviations from those that its BatchNormalization saw"),
        ("cls", "mean = [123.7, 116.8, 103.9]\nstd = [58.4, 57.1, 57.4]", "none above 0"),
        ("cls", f"scale = {1 / 255**2}\n{_TRAINED}", "none above 0"),
        ("rec", f"scale = {1 / 255**2}\n{_IMAGENET}", "none above 0"),
        ("rec", "mean = [0.5, 0.5, 0.5]\nstd = [0.06, 0.06, 0.06]", "farther from 0"),
        ("cls", _TRAINED, ""),
        ("cls", _IMAGENET, ""),
        ("det", _INIT, "none below 0"),
        ("det", _IMAGENET, ""),
        ("rec", _RAW, "standard deviations from those that its BatchNormalization saw"),
        ("rec", _TRAINED, ""),
    ],
)
def test_a_mean_and_std_that_cannot_be_those_of_training_are_warned_of(
    kind: str, settings: str, warning: str, key: Path, tmp_path: Path
) -> None:
    report = _build(kind, settings, key, tmp_path).report
    (preprocessing,) = report.samples.preprocessing
    assert preprocessing.startswith("x: image, NCHW RGB, resize stretch (bilinear) to ")
    assert "channel means" in preprocessing
    if not warning:
        assert report.warnings == ()
        return
    (given,) = report.warnings
    assert given.startswith("The preprocessing may be wrong: input 'x' holds values ")
    assert warning in given


def test_the_first_lines_of_the_summary_and_the_page_warn_of_the_preprocessing(
    key: Path, tmp_path: Path
) -> None:
    _draw(tmp_path / "samples", "cls")
    command = [
        *(str(Path(sys.executable).parent / "edgepack"), "build", str(_model("cls"))),
        *("--config", str(_config(tmp_path, "cls", _INIT)), "--calibration", "samples"),
        *("--shape", "x=1,3,48,192", "--profile", "fp32", "--key", str(key), "--name", "cls"),
        *("-o", "cls-1.0.0.edgepack"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first = [line for line in done.stdout.splitlines() if line][:3]
    assert any(line.startswith("warning: The preprocessing may be wrong") for line in first)
    assert "Evaluated with input x: image, NCHW RGB" in done.stdout
    page = (tmp_path / "cls-1.0.0.edgepack.report.html").read_text()
    verdict = page.partition('<p class="verdict">')[2].partition("</p>")[0]
    assert "The preprocessing may be wrong" in verdict
    assert "<td>Preprocessing</td>" in page
    listed = json.loads((tmp_path / "cls-1.0.0.edgepack.report.json").read_text())
    assert listed["warnings"]
    assert listed["samples"]["preprocessing"]
