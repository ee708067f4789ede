"""Is somebody speaking: Silero VAD on synthesized speech in noise.

An LSTM with a state that goes out of an inference and into the next. Debian's espeak-ng speaks,
once; the label of a frame is whether the clean signal is loud.
"""

import io
import random
import subprocess
import wave
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.tasks.float_model import open_float_model
from benchmarks.tasks.places import cached_arrays, package_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task
from benchmarks.tasks.text import all_words
from edgepack.errors import BuildError

_RATE_HZ = 16_000
_FRAME = 512
_CONTEXT = 64
"""Samples of the frame before, which the model sees again."""
_RECORDING_S = 12
_STATE_SHAPE = (2, 1, 128)
_VOICES = ("en", "en-us", "en+f3", "en-us+m5", "de", "fr+f2")
_CALIBRATION_COUNT = 200
_RECORDINGS = {"calibration": (3, 91), "development": (4, 93), "evaluation": (8, 92)}
"""Number of recordings and seed of each set."""
_MODEL = package_folder("silero_vad") / "data" / "silero_vad_openvino_16k.onnx"

Signal = npt.NDArray[np.float32]
"""Sound: float32 (n,), -1 … 1, 16 kHz."""


def _say(text: str, voice: str, words_per_minute: int) -> Signal:
    command = ["espeak-ng", "-v", voice, "-s", str(words_per_minute), "--stdout", text]
    try:
        spoken = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise BuildError(
            "the benchmark vad needs espeak-ng once, to make its samples",
            remedy="apt-get install espeak-ng",
        ) from error
    with wave.open(io.BytesIO(spoken)) as sound:
        # Written to a pipe, the header cannot know the length: it says the largest there is.
        frames = sound.readframes(min(sound.getnframes(), 10**7))
        rate_hz = sound.getframerate()
    signal = np.frombuffer(frames, np.int16).astype(np.float32) / 32768
    count = int(len(signal) * _RATE_HZ / rate_hz)
    positions = np.linspace(0, len(signal) - 1, count)
    return np.interp(positions, np.arange(len(signal)), signal).astype(np.float32)


def _speech(rng: random.Random, words: list[str]) -> Signal:
    """Return twelve seconds of sentences with pauses in between."""
    signal = np.zeros(_RATE_HZ * _RECORDING_S, np.float32)
    at = rng.randint(3000, 15000)
    while at < len(signal) - 20000:
        start = rng.randrange(len(words) - 9)
        text = " ".join(words[start : start + rng.randint(2, 7)])
        said = _say(text, rng.choice(_VOICES), rng.randint(130, 200))[: len(signal) - at]
        signal[at : at + len(said)] += said * rng.uniform(0.3, 1)
        at += len(said) + rng.randint(6000, 24000)
    return signal


def _noise_for(rng: random.Random, speech: Signal) -> Signal:
    """Return white or low-passed noise, -2 to 15 dB below the speech."""
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, 1, len(speech))
    if rng.random() < 0.5:
        noise = np.convolve(noise, np.ones(8) / 8, "same") * 2.5
    speech_to_noise_db = rng.uniform(-2, 15)
    loudness = np.sqrt((speech[np.abs(speech) > 0.01] ** 2).mean())
    noise *= loudness / 10 ** (speech_to_noise_db / 20) / noise.std()
    return noise.astype(np.float32)


def _make(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    words = all_words()
    sounds, labels = [], []
    for _ in range(count):
        speech = _speech(rng, words)
        frames = speech[: len(speech) // _FRAME * _FRAME].reshape(-1, _FRAME)
        labels.append(np.abs(frames).max(axis=1) > 0.02)
        sounds.append((speech + _noise_for(rng, speech)).astype(np.float16))
    return {"sounds": np.stack(sounds), "labels": np.stack(labels)}


def _recordings(name: str) -> tuple[list[Signal], Array]:
    count, seed = _RECORDINGS[name]
    arrays = cached_arrays(f"vad_{name}", lambda: _make(count, seed))
    return [sound.astype(np.float32) for sound in arrays["sounds"]], arrays["labels"]


def _frames(sound: Signal) -> Iterator[Array]:
    padded = np.concatenate([np.zeros(_CONTEXT, np.float32), sound])
    for start in range(0, len(sound) // _FRAME * _FRAME, _FRAME):
        yield padded[start : start + _CONTEXT + _FRAME][None]


def _listen(run: Run, sound: Signal) -> Iterator[tuple[Feeds, float]]:
    """Yield each frame's inputs and its probability of speech, state carried along."""
    state: Array = np.zeros(_STATE_SHAPE, np.float32)
    for frame in _frames(sound):
        feeds: Feeds = {"input": frame, "state": state}
        outputs = run(feeds)
        state = outputs["stateN"]
        yield feeds, float(outputs["output"].item())


def _calibration() -> list[Feeds]:
    """Return frames spread over the recordings, with the float model's states."""
    run = open_float_model(_MODEL)
    sounds, _ = _recordings("calibration")
    heard = [feeds for sound in sounds for feeds, _ in _listen(run, sound)]
    return heard[:: max(1, len(heard) // _CALIBRATION_COUNT)][:_CALIBRATION_COUNT]


def _score(run: Run, part: Part) -> float:
    sounds, labels = _recordings(part)
    heard = [probability for sound in sounds for _, probability in _listen(run, sound)]
    return _area_under_curve(np.array(heard), labels.ravel())


def _area_under_curve(scores: Array, is_positive: Array) -> float:
    """Compute ROC-AUC by ranks."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = int(is_positive.sum())
    negatives = len(scores) - positives
    above = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="vad",
    model=_MODEL,
    metric="ROC-AUC",
    calibration=_calibration,
    score=_score,
)
