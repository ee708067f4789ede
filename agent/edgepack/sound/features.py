"""Log-mel features of a sound, equal to transformers' `WhisperFeatureExtractor`."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edgepack.sound.waves import Samples, Sound
from edgepack.tasks.inputs import SoundInput

_MAX_HERTZ = 8000.0
"""Upper end of the filters, whatever the rate: so in transformers."""
_FLOOR = 1e-10
_RANGE = 8.0
"""Decades below the loudest value that are kept."""
_STRIDES = 6
"""Part of a chunk that overlaps the chunk before, and behind: transformers' default."""
_LOG_STEP = np.log(6.4) / 27.0


def cut_sound(sound: Sound, described: SoundInput) -> Iterator[Samples]:
    """Yield the chunks of a sound: one if it is short enough, else overlapping ones."""
    length, size = sound.length_at(described.rate), described.samples
    stride = round(size / _STRIDES)
    start = 0
    while True:
        yield sound.read(start, start + size, described.rate)
        if start + size >= length:
            return
        start += size - 2 * stride


def prepare_sound(samples: Samples, described: SoundInput) -> npt.NDArray[np.float32]:
    """Return the features of a chunk, float32 (1, mels, frames).

    Args:
        samples: float32 (samples,), at the rate of the input; at most a chunk.
        described: The input.
    """
    padded = np.zeros(described.samples, np.float64)
    padded[: len(samples)] = samples
    around = np.pad(padded, described.fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, described.fft)[:: described.hop]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(described.fft) / described.fft)
    spectrum = np.fft.rfft(frames[: described.frames] * window)
    power = spectrum.real**2 + spectrum.imag**2
    mels = _filters(described.rate, described.fft, described.mels) @ power.T
    logs = np.log10(np.maximum(mels, _FLOOR))
    features = (np.maximum(logs, logs.max() - _RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(features[None], np.float32)


def prepare_start(sound: Sound, described: SoundInput) -> npt.NDArray[np.float32]:
    """Return the features of the first chunk of a sound; see `prepare_sound`."""
    return prepare_sound(next(cut_sound(sound, described)), described)


@lru_cache(maxsize=4)
def _filters(rate: int, fft: int, mels: int) -> npt.NDArray[np.float64]:
    """Return Slaney's triangular filters, (mels, frequencies)."""
    hertz = np.linspace(0, rate // 2, 1 + fft // 2)
    edges = _to_hertz(np.linspace(0.0, 15.0 + np.log(_MAX_HERTZ / 1000.0) / _LOG_STEP, mels + 2))
    slopes = edges[:, None] - hertz
    widths = np.diff(edges)[:, None]
    triangles = np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:])
    return np.asarray(np.maximum(triangles, 0.0) * (2.0 / (edges[2:] - edges[:-2]))[:, None])


def _to_hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = 1000.0 * np.exp(_LOG_STEP * (mels - 15.0))
    return np.where(mels >= 15.0, above, 200.0 * mels / 3.0)
