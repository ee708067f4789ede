"""Folders of pictures as calibration samples."""

import os
from pathlib import Path

import numpy as np
import pytest

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import ImageInput, WantedInputs, check_declarations
from edgepack.packager.tensors.spec import TensorSpec
from tests.unit.packager_io.models import IMAGE
from tests.unit.packager_io.opened_samples import open_given, refusal_of


def test_images_need_a_declared_preprocessing(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    image.new("RGB", (16, 8), (255, 0, 0)).save(tmp_path / "red.png")
    error = refusal_of(tmp_path)
    assert error.problem.startswith("the preprocessing of image input 'images' is not declared")
    assert "edgepack init MODEL, without --calibration" in str(error.remedy), "init itself may ask"
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


def _pictures(folder: Path, count: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number in range(count):
        image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")


def test_images_are_stacked_for_a_model_that_takes_several_at_once(tmp_path: Path) -> None:
    _pictures(tmp_path, 11)
    spec = TensorSpec(name="images", dtype="float32", shape=(4, 3, 8, 8))
    opened = open_given(tmp_path, spec, declarations={"images": ImageInput(scale=1.0)})
    stacks = [feeds["images"] for feeds in opened.samples]
    assert [stack[:, 0, 0, 0].tolist() for stack in stacks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert opened.notes[:2] == (
        "The model takes 4 images at once: so many in a row are one sample.",
        "8 of 11 images are used: the rest fills no whole sample.",
    )


def test_fewer_images_than_a_model_takes_at_once_are_refused_with_the_number(
    tmp_path: Path,
) -> None:
    _pictures(tmp_path, 3)
    spec = TensorSpec(name="images", dtype="float32", shape=(10, 3, 8, 8))
    error = refusal_of(tmp_path, spec, declarations={"images": ImageInput()})
    assert error.problem == "the model takes 10 images at once, and there are 3"
    assert error.found_in == str(tmp_path)
    assert (error.remedy or "").startswith("give 10 images or more, or export the model with an")


def test_an_image_that_needs_a_declaration_is_named_as_toml_wants_it(tmp_path: Path) -> None:
    _pictures(tmp_path, 1)
    spec = TensorSpec(name="serving/images:0", dtype="float32", shape=(1, 3, 8, 8))
    assert '[inputs."serving/images:0"] with kind = "image"' in (
        refusal_of(tmp_path, spec).remedy or ""
    )


def test_a_pipe_among_pictures_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    os.mkfifo(tmp_path / "a.png")
    error = refusal_of(tmp_path, declarations={"images": ImageInput()})
    assert error.problem == "a.png is not a file"


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (ImageInput(resize="crop", short_side=9), "resize = 'crop' and short_side = 9"),
        (ImageInput(resize="short_side"), "resize = 'short_side' and short_side = 0"),
        (ImageInput(resize="short_side", short_side=4), "short_side is at least the size"),
        (ImageInput(pad=300), "Expected `int` <= 255"),
    ],
)
def test_settings_that_no_device_takes_are_refused(
    declaration: ImageInput, problem: str, tmp_path: Path
) -> None:
    _pictures(tmp_path, 1)
    wanted = WantedInputs(specs=(IMAGE,), declarations={"images": declaration})

    def open_all() -> None:
        check_declarations(wanted)
        open_given(tmp_path, declarations={"images": declaration})

    with pytest.raises(BuildError) as caught:
        open_all()
    assert problem in caught.value.problem
    assert caught.value.found_in == "inputs.images"
