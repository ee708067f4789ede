"""Features of sounds, and the join of overlapping texts, against transformers'."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.generation.transcripts import join_tokens
from edgepack.sound.features import cut_sound, prepare_sound
from edgepack.sound.waves import open_sound
from edgepack.tasks.inputs import SoundInput
from tests.huggingface.tone_words import RATE, draw_sound

_RECORDED = Path(__file__).parents[2] / "huggingface" / "speech" / "recorded.json"
RECORDED = json.loads(_RECORDED.read_text())["features"]


def describe(seconds: float = 2, fft: int = 400, hop: int = 160, mels: int = 80) -> SoundInput:
    return SoundInput(
        name="x",
        rate=RATE,
        samples=round(seconds * RATE),
        fft=fft,
        hop=hop,
        mels=mels,
        output="y",
        vocabulary=9,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_features_are_those_of_transformers(name: str) -> None:
    """Transformers computes them in float32: the recorded values differ by 1e-5."""
    recorded = RECORDED[name]
    settings = recorded["settings"]
    described = describe(
        settings["chunk_length"],
        settings.get("n_fft", 400),
        settings.get("hop_length", 160),
        settings["feature_size"],
    )
    (samples,) = cut_sound(open_sound(draw_sound(3)[2], RATE), described)
    features = prepare_sound(samples, described)
    assert features.dtype == np.float32
    assert list(features.shape) == [1, *recorded["shape"]]
    np.testing.assert_allclose(features[0, :, :190:19].T, recorded["frames"], atol=2e-5)
    assert features.sum(dtype=np.float64) == pytest.approx(recorded["sum"], abs=0.1)


@pytest.mark.parametrize(
    ("seconds", "pieces"),
    [(0.5, [0.5]), (2, [2]), (2.001, [2, 0.668]), (4, [2, 2, 1.333]), (10 / 3, [2, 2])],
)
def test_long_sounds_are_cut_into_chunks_that_overlap(seconds: float, pieces: list[float]) -> None:
    sound = open_sound(np.arange(round(seconds * RATE)) / (10 * RATE), RATE)
    chunks = list(cut_sound(sound, describe()))
    assert [one.size / RATE for one in chunks] == pytest.approx(pieces, abs=1e-3)
    step = 32_000 - 2 * 5333
    for number, one in enumerate(chunks):
        assert one[0] == pytest.approx(number * step / (10 * RATE))


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([], []),
        ([[1, 2, 3]], [1, 2, 3]),
        ([[1, 2, 3, 4], [3, 4, 5]], [1, 2, 3, 4, 5]),
        ([[1, 2, 3], [4, 5]], [1, 2, 3, 4, 5]),
        ([[1, 2, 3], [3, 9, 5]], [1, 2, 3, 3, 9, 5]),  # A single equal token is chance.
        ([[1, 2, 3, 4, 8], [7, 3, 4, 5, 6]], [1, 2, 3, 4, 5, 6]),
        ([[1, 2, 3], [2, 3, 4], [3, 4, 5]], [1, 2, 3, 4, 5]),
    ],
)
def test_texts_are_joined_where_they_are_alike(texts: list[list[int]], joined: list[int]) -> None:
    """The expected texts are those of transformers' `_find_longest_common_sequence`."""
    assert join_tokens([np.array(one, np.int64) for one in texts]) == joined


def test_descriptions_that_contradict_themselves_are_refused() -> None:
    for words, wrong in (
        ("more samples than a window", {"seconds": 0.01}),
        ("more than 67108864 values", {"seconds": 1000, "fft": 2**14, "hop": 1}),
    ):
        with pytest.raises(ValueError, match=words):
            describe(**wrong)
