"""Whatever is given as a picture is prepared, or refused in a sentence, in bounded memory."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from edgepack.decoding import decode_json
from edgepack.errors import PictureError
from edgepack.pictures.decode import MAX_PIXELS
from edgepack.pictures.prepare import prepare_picture
from edgepack.tasks.description import ModelDescription
from tests.simulators.mutations import mutated
from tests.unit.pictures.drawn import described, encoded, noise

FORMS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")


def _refusal(source: bytes | Path | np.ndarray) -> PictureError:
    with pytest.raises(PictureError) as caught:
        prepare_picture(source, described())
    assert caught.value.remedy
    return caught.value


def png_of_size(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels)


def test_what_is_no_picture_is_refused() -> None:
    assert "no format of PNG, JPEG" in _refusal(b"not a picture").problem
    assert "no format of PNG, JPEG" in _refusal(b"").problem


def test_a_format_that_starts_another_program_is_not_tried() -> None:
    document = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    assert "no format of" in _refusal(document).problem


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2), (MAX_PIXELS + 1, 1)])
def test_too_many_pixels_are_refused_before_they_are_decoded(size: tuple[int, int]) -> None:
    problem = _refusal(png_of_size(*size)).problem
    assert "pixels" in problem


def test_a_strip_that_would_grow_beyond_the_limit_is_refused() -> None:
    strip = np.zeros((1, 2_000_000, 3), np.uint8)
    with pytest.raises(PictureError, match="where its shorter side has 256") as caught:
        prepare_picture(strip, described(resize="short_side", short_side=256))
    assert f"{MAX_PIXELS:,}" in caught.value.problem


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_picture_is_refused(form: str, tmp_path: Path) -> None:
    content = encoded(noise(60, 60), form)
    (tmp_path / "half").write_bytes(content[: len(content) // 2])
    refusal = _refusal(tmp_path / "half")
    assert refusal.problem.startswith("half cannot be read as an image")
    assert refusal.found_in == str(tmp_path / "half")


@pytest.mark.filterwarnings("ignore")  # Of damaged metadata Pillow warns.
@pytest.mark.parametrize("form", FORMS)
def test_damaged_pictures_are_read_or_refused_in_a_sentence(form: str) -> None:
    seeds = (encoded(noise(12, 9), form), encoded(noise(12, 9, "L"), form))
    words: list[str] = []
    for number, seed in enumerate(seeds):
        for changed in mutated(seed, seeds, number, 60):
            try:
                prepare_picture(changed, described())
            except PictureError as error:
                words.append(str(error).replace("\n", ""))
    assert words
    assert all(map(str.isprintable, words))


def test_pipes_folders_and_absent_files_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert _refusal(tmp_path / "pipe").problem == "pipe is not a file"
    assert _refusal(tmp_path).problem == f"{tmp_path.name} is not a file"
    assert _refusal(tmp_path / "no.png").problem == "no.png does not exist"


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((8, 8, 3), np.float32),
        np.zeros((1, 3, 8, 8), np.uint8),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((0, 8, 3), np.uint8),
    ],
)
def test_arrays_that_are_no_pixels_are_refused(array: np.ndarray) -> None:
    refusal = _refusal(array)
    assert f"an array of {array.dtype} {list(array.shape)} is not a picture" == refusal.problem
    assert "uint8 pixels [height, width, 3]" in (refusal.remedy or "")


def test_grey_of_16_bits_is_refused_and_colour_of_16_bits_keeps_the_upper_bits() -> None:
    deep = Image.fromarray(np.full((9, 9), 3000, np.uint16))
    assert "more than 8 bits a pixel (mode I;16)" in _refusal(encoded(deep)).problem
    raw = b"".join(b"\0" + struct.pack(">3H", 0x1234, 0xABCD, 0xFF00) * 32 for _ in range(24))
    picture = io.BytesIO(png_of_size(32, 24))
    with Image.open(picture) as plain:
        assert plain.mode == "RGB"
    head = struct.pack(">IIBBBBB", 32, 24, 16, 2, 0, 0, 0)
    body = b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    )
    one = described(dtype="uint8", layout="NHWC")
    got = prepare_picture(b"\x89PNG\r\n\x1a\n" + body, one).tensor
    assert got[0, 0, 0].tolist() == [0x12, 0xAB, 0xFF]


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0},
        {"width": 2**17},
        {"height": 60_000, "width": 60_000},
        {"mean": []},
        {"mean": [0.0, 0.0]},
        {"std": [0.0]},
        {"std": [1e308]},
        {"scale": "1"},
        {"pad": 256},
        {"filter": "open"},
        {"color": "CMYK"},
        {"dtype": "object"},
        {"resize": "short_side", "short_side": 8},
        {"resize": "stretch", "short_side": 8},
        {"resize": "crop", "short_side": 64},
        {"name": "x" * 1001},
        {"batch": -1},
        {"unknown": 1},
        {"kind": "program"},
    ],
)
def test_hostile_descriptions_are_refused(change: dict[str, object]) -> None:
    plain = msgspec.to_builtins(described())
    document = {"inputs": [plain]}
    assert decode_json(msgspec.json.encode(document), ModelDescription).picture == described()
    with pytest.raises(msgspec.ValidationError):
        decode_json(msgspec.json.encode({"inputs": [plain | change]}), ModelDescription)


_PEAK = """
import re, sys
from pathlib import Path
from PIL import Image
from edgepack.pictures.decode import load_image
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
load_image(sys.argv[1], "RGB")
print(peak() - before)
"""


def test_a_large_picture_is_in_memory_once(tmp_path: Path) -> None:
    """Pillow's own functions copy a picture for its rotation, and again for its colours."""
    Image.new("RGB", (5000, 4000)).save(tmp_path / "large.png", compress_level=1)
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "large.png")]
    took = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pixels_kib = 5000 * 4000 * 4 // 1024
    assert pixels_kib / 2 < int(took) < 1.5 * pixels_kib
