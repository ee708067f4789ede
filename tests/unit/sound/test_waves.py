"""Sounds from WAV files and arrays, at the rate of a model."""

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import SoundError
from edgepack.sound.waves import MAX_SECONDS, encode_wave, open_sound
from tests.simulators.late_modules import late

wavfile = late("scipy.io.wavfile")

TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(4410) / 44_100)


def write_pcm(samples: np.ndarray, width: int, channels: int = 1, rate: int = 44_100) -> bytes:
    """Return a WAV file as Python's own module writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64)
        if width == 1:
            opened.writeframes((whole + 128).astype(np.uint8).tobytes())
        else:
            wide = whole.astype("<i8").view(np.uint8).reshape(-1, 8)
            opened.writeframes(wide[:, :width].tobytes())
    return file.getvalue()


def write_chunks(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"WAVE" + b"".join(
        name + struct.pack("<I", len(content)) + content for name, content in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(("width", "error"), [(1, 0.01), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_all_widths_of_pcm_are_read(width: int, error: float) -> None:
    sound = open_sound(write_pcm(TONE, width))
    assert (sound.rate, sound.length) == (44_100, 4410)
    got = sound.read(0, sound.length, 44_100)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, TONE, atol=error)


def test_sixteen_bits_are_divided_by_two_to_the_fifteenth() -> None:
    samples = np.array([-32768, -1, 0, 1, 32767], np.int16)
    file = io.BytesIO()
    wavfile.write(file, 16_000, samples)
    expected = samples.astype(np.float32) / np.float32(32768)
    for sound in (open_sound(file.getvalue()), open_sound(samples, 16_000)):
        np.testing.assert_array_equal(sound.read(0, 5, 16_000), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_files_of_scipy_are_read_as_their_arrays(dtype: type, tmp_path: Path) -> None:
    samples = np.stack([TONE, -0.5 * TONE], axis=1)
    if np.dtype(dtype).kind != "f":
        facts = np.iinfo(dtype)
        samples = samples * facts.max / 2 + (128 if facts.min == 0 else 0)
    wavfile.write(tmp_path / "a.wav", 44_100, samples.astype(dtype))
    from_file = open_sound(tmp_path / "a.wav")
    from_array = open_sound(samples.astype(dtype), 44_100)
    np.testing.assert_array_equal(from_file.read(0, 4410, 44_100), from_array.read(0, 4410, 44_100))
    assert from_file.seconds == pytest.approx(0.1)


def test_channels_are_mixed() -> None:
    both = np.stack([TONE, 0.5 * TONE], axis=1)
    for sound in (open_sound(write_pcm(both.ravel(), 2, 2)), open_sound(both, 44_100)):
        np.testing.assert_allclose(sound.read(0, 4410, 44_100), 0.75 * TONE, atol=1e-4)


def test_files_that_state_their_channels_and_open_ends_are_read() -> None:
    """As ffmpeg writes 24 bits, and to a pipe."""
    samples = np.arange(1, 7, dtype=np.uint8).tobytes()
    guid = struct.pack("<H", 1) + b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
    form = struct.pack("<HHIIHH", 0xFFFE, 1, 16_000, 48_000, 3, 24)
    form += struct.pack("<HHI", 22, 24, 4) + guid
    content = write_chunks((b"LIST", b"abc\0"), (b"fmt ", form), (b"data", samples))
    expected = np.array([0x030201, 0x060504]) / 2**23
    np.testing.assert_allclose(open_sound(content).read(0, 2, 16_000), expected)
    at = content.index(b"data") + 4
    piped = content[:at] + b"\xff\xff\xff\xff" + content[at + 4 :]
    np.testing.assert_allclose(open_sound(piped).read(0, 2, 16_000), expected)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_101, 48_000, 96_000])
def test_a_tone_is_the_same_tone_at_another_rate(rate: int) -> None:
    seconds = 0.5
    times = np.arange(int(rate * seconds)) / rate
    sound = open_sound(np.sin(2 * np.pi * 1000 * times), rate)
    got = sound.read(0, sound.length_at(16_000), 16_000)
    assert got.size == -(-times.size * 16_000 // rate)
    expected = np.sin(2 * np.pi * 1000 * np.arange(got.size) / 16_000)
    np.testing.assert_allclose(got[100:-100], expected[100:-100], atol=0.01)


def test_a_tone_above_half_the_rate_is_removed() -> None:
    times = np.arange(24_000) / 48_000
    sound = open_sound(np.sin(2 * np.pi * 11_000 * times), 48_000)
    assert np.abs(sound.read(100, 7900, 16_000)).max() < 0.01


@given(start=st.integers(0, 1700), size=st.integers(0, 700))
def test_pieces_are_those_of_the_whole(start: int, size: int) -> None:
    sound = open_sound(TONE, 44_100)
    whole = sound.read(0, sound.length_at(16_000), 16_000)
    np.testing.assert_allclose(
        sound.read(start, start + size, 16_000), whole[start : start + size], atol=1e-7
    )


def test_an_array_becomes_a_file_with_the_same_samples() -> None:
    sound = open_sound(TONE, 44_100)
    again = open_sound(bytes(encode_wave(sound)))
    np.testing.assert_array_equal(again.read(0, 4410, 44_100), TONE.astype(np.float32))
    content = write_pcm(TONE, 2)
    assert bytes(encode_wave(open_sound(content))) == content


_FORM = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no WAV file"),
        (b"ID3\x04" + b"\0" * 40, "begins with"),
        (b"RF64" + write_pcm(TONE, 2)[4:], "no WAV file"),
        (write_pcm(TONE, 2)[:30], "no format"),
        (write_pcm(TONE, 2)[:36], r"no samples \(data\)"),
        (write_pcm(TONE, 2)[:-1], "cut short"),
        (write_chunks((b"data", b"\0" * 8)), "no format"),
        (write_chunks((b"fmt ", _FORM[:8]), (b"data", b"")), "has 8 bytes"),
        (write_chunks((b"fmt ", _FORM), (b"data", b"")), "no samples"),
        (write_chunks((b"fmt ", b"\x07\0" + _FORM[2:]), (b"data", b"\0\0")), "format 7 with 16"),
        (write_chunks((b"fmt ", _FORM[:14] + b"\x0c\0"), (b"data", b"\0\0")), "with 12 bits"),
        (write_chunks((b"fmt ", _FORM[:2] + b"\0\0" + _FORM[4:])), "0 channels"),
        (write_chunks((b"fmt ", _FORM[:12] + b"\x09\0" + _FORM[14:])), "in 9 bytes"),
        (
            write_chunks((b"fmt ", _FORM[:4] + b"\x01\0\0\0" + _FORM[8:]), (b"data", b"\0\0")),
            "has 1 samples per second",
        ),
        (b"RIFF\0\0\0\0WAVE" + b"abcd\0\0\0\0" * 2000, "no format"),
    ],
)
def test_malformed_files_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(SoundError, match=words):
        open_sound(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_sound_or_refused(content: bytes) -> None:
    for given_bytes in (content, b"RIFF\0\0\0\0WAVE" + content, write_chunks((b"fmt ", content))):
        try:
            sound = open_sound(given_bytes)
            sound.read(0, 100, 16_000)
        except SoundError:
            continue


def test_sounds_are_bounded() -> None:
    with pytest.raises(SoundError, match=f"at most {MAX_SECONDS} s"):
        open_sound(np.zeros(4_000 * MAX_SECONDS + 1, np.uint8), 4_000)
    for rate in (1, 10**9):
        with pytest.raises(SoundError, match="samples per second"):
            open_sound(TONE, rate)


def test_arrays_that_are_no_sound_are_refused() -> None:
    for samples, words in (
        (np.zeros((2, 100)), r"not \[2, 100\]"),
        (np.zeros((1, 1, 1)), "shape"),
        (np.zeros(5, np.int64), "not int64"),
        (np.zeros(5, complex), "not complex128"),
    ):
        with pytest.raises(ValueError, match=words):
            open_sound(samples, 16_000)
    with pytest.raises(ValueError, match="needs its rate"):
        open_sound(TONE)
    with pytest.raises(ValueError, match="leave rate out"):
        open_sound(write_pcm(TONE, 2), 44_100)
    with pytest.raises(TypeError, match="whole number"):
        open_sound(TONE, 16_000.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a list"):
        open_sound([0.0])  # type: ignore[arg-type]
