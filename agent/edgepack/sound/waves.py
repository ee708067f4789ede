"""Sounds from WAV files and arrays, read piece by piece at the rate of a model.

Python's own `wave` reads no floats, and before Python 3.12 no files that state their channels, as
most programs write 24 bits. So the parser is here.
"""

import struct
from collections.abc import Callable
from math import ceil, gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgepack.errors import SoundError
from edgepack.text import printable

Samples = npt.NDArray[np.float32]
SoundSource = str | Path | bytes | bytearray | memoryview | npt.NDArray[Any]
"""A sound: a path, the bytes of a WAV file, or samples (samples,) or (samples, channels)."""

MAX_BYTES = 256 * 1024 * 1024
"""Of a file."""
MAX_SECONDS = 3600
MIN_RATE, MAX_RATE = 4_000, 192_000
"""Samples per second, of sounds and of models."""
MAX_CHANNELS = 8

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_OPEN_END = 0xFFFFFFFF
"""Length of a chunk that a program wrote to a pipe: up to the end of the file."""
_MAX_CHUNKS = 1000
_CONVERT = "write a WAV file of 16 bits, for example: ffmpeg -i FILE -ac 1 -ar 16000 new.wav"

_ZEROS, _ROLLOFF = 6, 0.99
"""Zeros of the sinc on each side, and share of the lower rate that passes: the defaults of
torchaudio, which transformers resamples arrays with."""
_BLOCK = 16_384


class _Form(NamedTuple):
    """Format of the samples in a file."""

    kind: int
    bits: int
    channels: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


class Sound:
    """Sound of one channel: several are mixed.

    Args:
        rate: Samples per second.
        length: Samples.
        read: Returns samples of a range, float32 (samples, channels).
        file: The WAV file; None for an array.

    Attributes:
        rate, length, file: See above.
    """

    def __init__(
        self,
        rate: int,
        length: int,
        read: Callable[[int, int], npt.NDArray[Any]],
        file: memoryview | None = None,
    ) -> None:
        if not MIN_RATE <= rate <= MAX_RATE:
            raise SoundError(
                f"the sound has {rate} samples per second: {MIN_RATE} to {MAX_RATE} are read",
                remedy=_CONVERT,
            )
        if not length:
            raise SoundError("the sound has no samples", remedy="give a sound that is not empty")
        if length > MAX_SECONDS * rate:
            raise SoundError(
                f"the sound lasts {length / rate:,.0f} s: at most {MAX_SECONDS} s are read",
                remedy="cut the sound into pieces",
            )
        self.rate, self.length, self.file = rate, length, file
        self._read = read
        self._kernels: dict[tuple[int, int], npt.NDArray[np.float64]] = {}

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.length / self.rate

    def length_at(self, rate: int) -> int:
        """Return the number of samples at another rate."""
        return -(-self.length * rate // self.rate)

    def read(self, start: int, stop: int, rate: int) -> Samples:
        """Return a piece at a rate, float32 (samples,).

        Args:
            start, stop: Samples at that rate; the piece ends with the sound.
            rate: Samples per second.

        Raises:
            SoundError: A sample is not finite.
        """
        stop = min(stop, self.length_at(rate))
        if rate == self.rate:
            return self._mixed(start, stop)
        divisor = gcd(rate, self.rate)
        old, new = self.rate // divisor, rate // divisor
        kernel = self._kernel(old, new)
        reach = kernel.shape[1] // 2 - 1
        pieces = [
            self._resample(np.arange(at, min(at + _BLOCK, stop)), old, new, kernel, reach)
            for at in range(start, stop, _BLOCK)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)

    def _resample(
        self,
        places: npt.NDArray[np.int64],
        old: int,
        new: int,
        kernel: npt.NDArray[np.float64],
        reach: int,
    ) -> Samples:
        nearest, phases = np.divmod(places * old, new)
        first, last = int(nearest[0]) - reach, int(nearest[-1]) + reach + 2
        given = np.zeros(last - first, np.float32)
        begin, end = max(first, 0), min(last, self.length)
        given[begin - first : end - first] = self._mixed(begin, end)
        taps = (nearest - nearest[0])[:, None] + np.arange(kernel.shape[1])
        return np.asarray(np.einsum("nk,nk->n", given[taps], kernel[phases]), np.float32)

    def _kernel(self, old: int, new: int) -> npt.NDArray[np.float64]:
        """Return the weights of the samples around each phase: a windowed sinc."""
        if (old, new) not in self._kernels:
            width = min(old, new) * _ROLLOFF
            reach = ceil(_ZEROS * old / width)
            places = np.arange(-reach, reach + 2) - (np.arange(new) / new)[:, None]
            times = np.clip(places * (width / old), -_ZEROS, _ZEROS)
            window = np.cos(times * np.pi / _ZEROS / 2) ** 2
            self._kernels[old, new] = np.sinc(times) * window * (width / old)
        return self._kernels[old, new]

    def _mixed(self, start: int, stop: int) -> Samples:
        rows = self._read(start, stop)
        mixed = rows[:, 0] if rows.shape[1] == 1 else rows.mean(axis=1, dtype=np.float32)
        if not np.isfinite(mixed).all():
            raise SoundError(
                f"the sound has samples that are not finite, between {start / self.rate:.2f} and "
                f"{stop / self.rate:.2f} s",
                remedy="write the sound again",
            )
        return np.ascontiguousarray(mixed, np.float32)


def open_sound(source: SoundSource, rate: int | None = None) -> Sound:
    """Open a sound.

    Args:
        source: See `SoundSource`. Floats are from -1 to 1; int16, int32 and uint8 as in WAV files.
        rate: Samples per second of an array; None for a file, which states its own.

    Raises:
        SoundError: The file cannot be read, or is no WAV file that is supported, or the sound is
            empty or too long.
        ValueError: An array has no rate or another shape, or a file has a rate beside it.
        TypeError: The source or the rate is of another type.
    """
    if isinstance(source, np.ndarray):
        if rate is None:
            raise ValueError("an array of samples needs its rate: transcribe(samples, rate=16000)")
        return _open_array(source, rate)
    if rate is not None:
        raise ValueError("a WAV file states its own rate: leave rate out")
    return _open_wave(memoryview(read_source(source)).cast("B"))


def read_source(source: SoundSource) -> bytes | bytearray | memoryview:
    """Return the bytes of a file.

    Raises:
        SoundError: The file cannot be read, or is too long.
        TypeError: The source is of another type.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return source
    if not isinstance(source, str | Path):
        raise TypeError(
            "a sound is a path, the bytes of a WAV file or an array of numpy, not a "
            f"{type(source).__name__}"
        )
    path = Path(source)
    try:
        if path.exists() and not path.is_file():
            raise SoundError("this is not a regular file", found_in=str(path), remedy=_CONVERT)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        because = error.strerror if isinstance(error, OSError) else error
        raise SoundError(
            f"the sound cannot be read: {because}",
            found_in=printable(str(path)),
            remedy="name a file that exists",
        ) from error
    if len(content) > MAX_BYTES:
        raise SoundError(
            f"the file has more than {MAX_BYTES} bytes", found_in=str(path), remedy=_CONVERT
        )
    return content


def encode_wave(sound: Sound) -> bytes | memoryview:
    """Return the WAV file of a sound; of an array, a file of one channel with float32."""
    if sound.file is not None:
        return sound.file
    samples = sound.read(0, sound.length, sound.rate).astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", _FLOAT, 1, sound.rate, 4 * sound.rate, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _open_array(samples: npt.NDArray[Any], rate: int) -> Sound:
    if isinstance(rate, bool) or not isinstance(rate, int):
        raise TypeError(f"rate is a whole number of samples per second, not {rate!r:.40}")
    shape = list(samples.shape)
    rows = samples[:, None] if samples.ndim == 1 else samples
    if rows.ndim != 2 or not 1 <= rows.shape[1] <= MAX_CHANNELS:
        raise ValueError(
            f"samples have the shape (samples,) or (samples, channels) with at most {MAX_CHANNELS} "
            f"channels, not {shape}"
        )
    if rows.dtype.kind != "f" and rows.dtype.name not in ("int16", "int32", "uint8"):
        raise ValueError(f"samples are floats, int16, int32 or uint8, not {rows.dtype}")
    return Sound(rate, len(rows), lambda start, stop: _to_floats(rows[start:stop]))


def _to_floats(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if rows.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return rows.astype(np.float32)
    if rows.dtype == np.uint8:
        return (rows.astype(np.float32) - np.float32(128)) / np.float32(128)
    return (rows / np.float64(-np.iinfo(rows.dtype).min)).astype(np.float32)


def _open_wave(content: memoryview) -> Sound:
    """Open the bytes of a WAV file.

    Raises:
        SoundError: The file is malformed, or of another kind.
    """
    if len(content) > MAX_BYTES:
        raise SoundError(f"the file has more than {MAX_BYTES} bytes", remedy=_CONVERT)
    if bytes(content[:4]) != b"RIFF" or bytes(content[8:12]) != b"WAVE":
        raise SoundError(
            f"this is no WAV file: it begins with {bytes(content[:12])!a}", remedy=_CONVERT
        )
    form, rate, at = None, 0, 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(content):
            break
        kind, size = bytes(content[at : at + 4]), int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data" and form is not None:
            return _open_samples(content, at, size, form, rate)
        if at + size > len(content):
            break
        if kind == b"fmt " and form is None:
            form, rate = _read_form(content[at : at + size])
        at += size + size % 2
    missing = "format (fmt)" if form is None else "samples (data)"
    raise SoundError(f"the WAV file has no {missing}: it is cut short or damaged", remedy=_CONVERT)


def _read_form(chunk: memoryview) -> tuple[_Form, int]:
    """Return the format of the samples, and their rate.

    Raises:
        SoundError: The format is not supported.
    """
    if len(chunk) < 16:
        raise SoundError(f"the format of the WAV file has {len(chunk)} bytes, not 16 or more")
    kind, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", chunk[:16])
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = int.from_bytes(chunk[24:26], "little")
    if bits not in {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}.get(kind, ()):
        raise SoundError(
            f"the WAV file has samples of format {kind} with {bits} bits: PCM (1) with 8, 16, 24 "
            "or 32 bits and floats (3) with 32 or 64 are read",
            remedy=_CONVERT,
        )
    form = _Form(kind, bits, channels)
    if not 1 <= channels <= MAX_CHANNELS or frame_bytes != form.frame_bytes:
        raise SoundError(
            f"the WAV file has {channels} channels of {bits} bits in {frame_bytes} bytes: 1 to "
            f"{MAX_CHANNELS} channels are read",
            remedy=_CONVERT,
        )
    return form, rate


def _open_samples(content: memoryview, at: int, size: int, form: _Form, rate: int) -> Sound:
    left = len(content) - at
    if size > left and size != _OPEN_END:
        raise SoundError(
            f"the WAV file is cut short: its samples have {size} bytes, and {left} are here",
            remedy="copy the file again",
        )
    length = min(size, left) // form.frame_bytes
    dtype = {8: "u1", 16: "<i2", 24: "u1", 32: "<i4"}[form.bits] if form.kind == _PCM else ""
    dtype = dtype or f"<f{form.bits // 8}"

    def read(start: int, stop: int) -> npt.NDArray[np.float32]:
        first, last = (at + place * form.frame_bytes for place in (start, stop))
        values = np.frombuffer(content[first:last], dtype)
        if form.kind == _PCM and form.bits == 24:
            wide = np.zeros((values.size // 3, 4), np.uint8)
            wide[:, 1:] = values.reshape(-1, 3)
            values = wide.view("<i4")
        return _to_floats(values.reshape(-1, form.channels))

    return Sound(rate, length, read, content)
