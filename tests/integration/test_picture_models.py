"""A model of pictures from the build to an application: the bundle says how pictures are prepared,
and the device does just that.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.bundle.forms import read_manifest
from edgepack.bundle.golden import read_golden
from edgepack.bundle.manifest import GOLDEN_FILE
from edgepack.pictures.prepare import prepare_picture
from tests.simulators import warm_programs
from tests.unit.packager_io.models import save, small_cnn
from tests.unit.pictures.drawn import noise

NAMES = ("cat", "dog", "emu", "fox", "gnu", "hen", "ibis", "jay", "koi", "lark")

CONFIG = f"""
[inputs.images]
kind = "image"
resize = "letterbox"
filter = "bicubic"
color = "BGR"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]

[outputs.scores]
task = "classification"
class_names = {json.dumps(NAMES)}
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw 40 pictures of several sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(40):
        form = "jpg" if number % 2 else "png"
        noise(9 + number, 40 - number // 2, seed=number).save(folder / f"{number:02}.{form}")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, pictures: Path, key: Path) -> Path:
    """Build a classifier with the command."""
    folder = tmp_path_factory.mktemp("classifier")
    model = save(small_cnn(), folder / "zoo.onnx")
    (folder / "edgepack.toml").write_text(CONFIG)
    _edgepack(
        *("build", model, "--config", folder / "edgepack.toml", "--profile", "fp32"),
        *("--calibration", pictures, "--key", key, "-o", folder / "zoo-1.0.0"),
    )
    return folder / "zoo-1.0.0"


def _edgepack(*words: str | Path) -> str:
    command = [sys.executable, "-m", "edgepack.cli", *map(str, words)]
    done = warm_programs.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_bundle_says_how_pictures_become_the_models_input(bundle: Path) -> None:
    said: dict[str, Any] = json.loads(_edgepack("inspect", bundle, "--json"))["manifest"]
    (known,) = said["facts"]["description"]["inputs"]
    assert known["mean"] == [0.485, 0.456, 0.406]
    assert (known["height"], known["width"], known["batch"]) == (8, 8, 0)
    assert known["is_checked"] is True
    shown = _edgepack("inspect", bundle)
    words = "image, NCHW BGR, resize letterbox (bicubic) to 8 x 8, (pixel * 0.00392157 - [0.485, "
    assert f"input images: {words}" in shown
    assert "output scores: classification, 10 classes: cat, dog, emu" in shown
    assert words in (bundle.parent / "zoo-1.0.0.report.html").read_text()


def test_the_device_prepares_a_picture_with_the_same_bits_as_the_build(
    bundle: Path, pictures: Path
) -> None:
    described = read_manifest(bundle).facts.description.picture
    assert described is not None
    prepared = {
        prepare_picture(path, described).tensor.tobytes() for path in sorted(pictures.iterdir())
    }
    golden = read_golden(bundle / GOLDEN_FILE)
    assert len(golden.inputs) > 1
    for feeds in golden.inputs:
        assert np.ascontiguousarray(feeds["images"]).tobytes() in prepared
