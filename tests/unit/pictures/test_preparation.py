"""A picture becomes the values that the description states, whatever it came as."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from edgepack.errors import PictureError
from edgepack.pictures.frame import place_picture
from edgepack.pictures.prepare import prepare_picture
from tests.unit.pictures.drawn import described, encoded, noise

SIZES = [(32, 24), (64, 48), (100, 31), (31, 100), (7, 90), (320, 9), (1, 1), (33, 25)]
_FILTER = Image.Resampling.BILINEAR


def _by_pillow(image: Image.Image, resize: str) -> Image.Image:
    """Resize by Pillow's own functions."""
    if resize == "letterbox":
        return ImageOps.pad(image, (32, 24), _FILTER, color=(114, 114, 114))
    if resize == "crop":
        return ImageOps.fit(image, (32, 24), _FILTER)
    return image.resize((32, 24), _FILTER)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
def test_bits_are_those_of_pillows_own_functions(resize: str, size: tuple[int, int]) -> None:
    image = noise(*size)
    one = described(resize=resize, dtype="uint8", layout="NHWC")
    got = prepare_picture(np.asarray(image), one).tensor
    np.testing.assert_array_equal(got[0], np.asarray(_by_pillow(image, resize)))


@pytest.mark.parametrize("size", [(64, 48), (100, 31), (31, 100), (45, 45), (41, 97)])
def test_short_side_resizes_and_cuts_the_middle_as_training_does(size: tuple[int, int]) -> None:
    """Compare with the rule of torchvision's `Resize(40)` and `CenterCrop`, and of transformers."""
    image, short = noise(*size), 40
    width, height = size
    across, down = (
        (short, int(short * height / width))
        if width <= height
        else (int(short * width / height), short)
    )
    left, top = (across - 32) // 2, (down - 24) // 2
    expected = image.resize((across, down), Image.Resampling.BICUBIC)
    expected = expected.crop((left, top, left + 32, top + 24))
    one = described(resize="short_side", short_side=short, filter="bicubic", dtype="uint8")
    got = prepare_picture(encoded(image), one).tensor
    np.testing.assert_array_equal(got[0].transpose(1, 2, 0), np.asarray(expected))


def test_stretch_may_cut_the_middle_out_too() -> None:
    """Compare with the rule of DeiT: `Resize((36, 48))`, whatever the aspect, then `CenterCrop`."""
    image = noise(61, 83)
    expected = image.resize((48, 36), Image.Resampling.BILINEAR).crop((8, 6, 40, 30))
    got = prepare_picture(encoded(image), described(short_side=36, dtype="uint8")).tensor
    np.testing.assert_array_equal(got[0].transpose(1, 2, 0), np.asarray(expected))


def test_values_layout_and_colours_follow_the_description() -> None:
    red = np.zeros((24, 32, 3), np.uint8)
    red[..., 0] = 255
    plain = prepare_picture(red, described(mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0))).tensor
    assert (plain.dtype.name, plain.shape) == ("float32", (1, 3, 24, 32))
    assert plain[0, :, 0, 0].tolist() == [1.0, -0.25, 0.0]
    turned = prepare_picture(red, described(color="BGR", layout="NHWC", mean=(0.0,), std=(1.0,)))
    assert turned.tensor[0, 0, 0].tolist() == [0.0, 0.0, 1.0]
    half = prepare_picture(red, described(dtype="float16", color="GRAY")).tensor
    assert (half.dtype.name, half.shape) == ("float16", (1, 1, 24, 32))


def test_a_path_bytes_and_pixels_give_the_same_bits(tmp_path: Path) -> None:
    image = noise(61, 50)
    content = encoded(image)
    (tmp_path / "a.png").write_bytes(content)
    ways: list[Any] = [tmp_path / "a.png", str(tmp_path / "a.png"), content, bytearray(content)]
    first, *others = (
        prepare_picture(way, described()).tensor for way in (*ways, np.asarray(image))
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_pixels_of_the_inputs_size_need_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = np.asarray(noise(32, 24))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert prepare_picture(fits, described()).tensor.shape == (1, 3, 24, 32)
    with pytest.raises(PictureError) as caught:
        prepare_picture(fits[1:], described())
    assert caught.value.problem == "reading images needs Pillow, which is not installed"
    assert caught.value.remedy == "pip install 'edgepack[images]'"


def test_a_picture_is_turned_as_its_exif_says() -> None:
    image = noise(50, 20)
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees.
    turned = prepare_picture(encoded(image, exif=exif), described())
    upright = prepare_picture(np.rot90(np.asarray(image), -1), described())
    np.testing.assert_array_equal(turned.tensor, upright.tensor)
    assert (turned.frame.width, turned.frame.height) == (20, 50)


def test_alpha_is_dropped_and_cmyk_and_palettes_become_colours() -> None:
    image = noise(40, 40)
    plain = prepare_picture(encoded(image), described()).tensor
    veiled = image.copy()
    veiled.putalpha(noise(40, 40, "L", seed=1))
    np.testing.assert_array_equal(prepare_picture(encoded(veiled), described()).tensor, plain)
    np.testing.assert_array_equal(prepare_picture(np.asarray(veiled), described()).tensor, plain)
    inks = encoded(image.convert("CMYK"), "TIFF")
    np.testing.assert_array_equal(prepare_picture(inks, described()).tensor, plain)
    few = image.quantize(16)
    seen = encoded(few, transparency=bytes(range(16)))
    expected = prepare_picture(np.asarray(few.convert("RGB")), described()).tensor
    np.testing.assert_array_equal(prepare_picture(seen, described()).tensor, expected)


def test_a_point_of_the_input_is_found_in_the_picture() -> None:
    wide = place_picture(described(resize="letterbox"), 64, 16)
    assert (wide.target, wide.box) == ((0, 8, 32, 8), (0.0, 0.0, 64.0, 16.0))
    cut = place_picture(described(resize="crop"), 64, 24)
    assert (cut.target, cut.box) == ((0, 0, 32, 24), (16.0, 0.0, 48.0, 24.0))
    short = place_picture(described(resize="short_side", short_side=48), 96, 48)
    assert (short.target, short.box) == ((-32, -12, 96, 48), (0.0, 0.0, 96.0, 48.0))
