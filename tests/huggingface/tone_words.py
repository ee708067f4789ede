"""Sounds of a language of tones, for small models of speech: each word is a chord of two tones."""

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

RATE = 16_000
LONG_WORDS = 30
"""Of a sound that has many chunks."""
WORDS = {
    "en": ("red", "green", "stop", "river"),
    "de": ("rot", "grün", "halt", "fluß"),
}
LANGUAGES = tuple(WORDS)
_WORD_S, _GAP_S = 0.3, 0.12
_LOW, _HIGH = (320.0, 560.0, 990.0, 1730.0), {"en": 3200.0, "de": 4700.0}

Wave = npt.NDArray[np.float32]


def draw_words(rng: np.random.Generator, language: str, count: int) -> list[str]:
    """Return words of a language."""
    return [str(one) for one in rng.choice(WORDS[language], count)]


def say(words: Sequence[str], language: str, rng: np.random.Generator, *, rate: int = RATE) -> Wave:
    """Return the sound of words, float32 (samples,), with a pause before each."""
    pieces = []
    for word in words:
        number = WORDS[language].index(word)
        pitch = 1 + 0.01 * rng.standard_normal()
        times = np.arange(int(_WORD_S * rate)) / rate
        envelope = np.sin(np.pi * times / _WORD_S) ** 0.5
        tones = np.sin(2 * np.pi * _LOW[number] * pitch * times)
        tones += 0.5 * np.sin(2 * np.pi * _HIGH[language] * pitch * times)
        pause = np.zeros(int(_GAP_S * rng.uniform(0.7, 1.5) * rate))
        pieces += [pause, 0.3 * rng.uniform(0.6, 1.2) * envelope * tones]
    sound = np.concatenate(pieces)
    sound += 0.002 * rng.standard_normal(sound.size)
    return sound.astype(np.float32)


def draw_sound(number: int, count: int = 0) -> tuple[str, list[str], Wave]:
    """Return a sound by its number: its language, its words and its samples of 16 bits."""
    rng = np.random.default_rng(1000 + number)
    language = LANGUAGES[number % 2]
    words = draw_words(rng, language, count or 1 + number % 4)
    samples = np.round(say(words, language, rng) * 32767).astype(np.int16)
    return language, words, samples.astype(np.float32) / np.float32(32768)


def write_wave(path: Path, sound: Wave, rate: int = RATE) -> Path:
    """Write a sound as a WAV file of 16 bits, mono."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(sound * 32768).astype("<i2").tobytes())
    return path
