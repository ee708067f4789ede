"""Folders of pictures as calibration samples."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgepack.packager.config.inputs import ImageInput
from tests.unit.packager_io.opened_samples import open_given, refusal_of


def test_images_need_a_declared_preprocessing(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("RGB", (16, 8), (255, 0, 0)).save(tmp_path / "red.png")
    error = refusal_of(tmp_path)
    assert error.problem.startswith("the preprocessing of image input 'images' is not declared")
    declaration = ImageInput(color="BGR", mean=(0.5,), std=(0.5,))
    feeds = open_given(tmp_path, declarations={"images": declaration}).samples.read(0)
    assert feeds["images"].shape == (1, 3, 8, 8)
    pixel = np.asarray(feeds["images"][0, :, 0, 0], np.float32)
    np.testing.assert_allclose(pixel, [-1, -1, 1], atol=1e-6)


def test_letterbox_keeps_the_aspect_and_pads(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("RGB", (16, 8), (255, 255, 255)).save(tmp_path / "wide.png")
    declaration = ImageInput(resize="letterbox", pad=0, scale=1.0)
    feeds = open_given(tmp_path, declarations={"images": declaration}).samples.read(0)
    rows = feeds["images"][0, 0, :, 4]
    assert list(rows) == [0, 0, 255, 255, 255, 255, 0, 0]


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    error = refusal_of(tmp_path, declarations={"images": ImageInput()})
    assert error.found_in == str(tmp_path / "bad.png")
    assert error.problem.startswith("bad.png cannot be read as an image")


@pytest.mark.parametrize(("dtype", "mode"), [("uint16", "I;16"), ("float32", "F")])
def test_a_picture_of_more_than_8_bits_is_refused_and_not_cut_off(
    tmp_path: Path, dtype: str, mode: str
) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.fromarray(np.full((9, 9), 3000, dtype)).save(tmp_path / "a.tiff")
    error = refusal_of(tmp_path, declarations={"images": ImageInput()})
    assert error.problem == (
        f"a.tiff has more than 8 bits a pixel (mode {mode}), and the declared scale is for values "
        "from 0 to 255"
    )
    assert "save .npy or .npz files" in (error.remedy or "")


def test_a_pipe_among_pictures_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    os.mkfifo(tmp_path / "a.png")
    error = refusal_of(tmp_path, declarations={"images": ImageInput()})
    assert error.problem == "a.png is no file"
