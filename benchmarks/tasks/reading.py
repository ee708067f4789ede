"""Recognition of a line of text: the drawn lines, and the decoding of a CTC model."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.tasks.places import cached_arrays
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task
from benchmarks.tasks.text import all_words, short_line
from benchmarks.tasks.text_images import as_paddle_input, render_line

_HEIGHT, _WIDTH = 48, 320
_CALIBRATION_COUNT, _CALIBRATION_SEED = 200, 11
_LABELLED: dict[Part, tuple[int, int]] = {"development": (150, 66), "evaluation": (300, 22)}
"""Number of lines and seed of each set."""


def draw_lines(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    words = all_words()
    images: list[Array] = []
    texts: list[str] = []
    while len(images) < count:
        text = short_line(rng, words, longest=22)
        if len(text) < 3:
            continue
        image = render_line(rng, text)
        if image.shape[1] / image.shape[0] > _WIDTH / _HEIGHT:
            continue  # the model would see it squeezed
        images.append(as_paddle_input(image, _HEIGHT, _WIDTH))
        texts.append(text)
    return {"images": np.concatenate(images).astype(np.float16), "labels": np.array(texts)}


def _samples(name: str, count: int, seed: int) -> tuple[list[Feeds], list[str]]:
    arrays = cached_arrays(f"ocr_rec_{name}", lambda: draw_lines(count, seed))
    feeds: list[Feeds] = [{"x": image[None].astype(np.float32)} for image in arrays["images"]]
    return feeds, arrays["labels"].tolist()


def letters_of(path: Path) -> list[str]:
    """Return the letter by class: the CTC blank, the model's own list, the missing space."""
    model = onnx.load(path, load_external_data=False)
    (listed,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return ["", *listed.splitlines(), " "]


def _decode(probabilities: Array, letters: list[str]) -> str:
    """Decode by greedy CTC: the best class of each step, repetitions merged, blanks dropped.

    Args:
        probabilities: float32 (1, steps, classes).
        letters: Letter by class.
    """
    best = probabilities[0].argmax(axis=-1).tolist()
    changes = [kind for kind, before in zip(best, [None, *best], strict=False) if kind != before]
    return "".join(letters[kind] for kind in changes)


def _score(run: Run, part: Part, model: Path) -> float:
    """Return the share of lines without a mistake; spaces do not count."""
    letters = letters_of(model)
    feeds, texts = _samples(part, *_LABELLED[part])
    right = 0
    for sample, text in zip(feeds, texts, strict=True):
        (probabilities,) = run(sample).values()
        read = _decode(probabilities, letters)
        right += read.replace(" ", "") == text.replace(" ", "")
    return right / len(texts)


def reading_task(name: str, model: Path) -> Task:
    """Return the task for a model with float32 (1, 3, 48, 320) in `x`, as PaddleOCR's recognizers.

    Args:
        name: The task's name.
        model: Its file; the metadata `character` lists its letters.
    """
    (output,) = onnx.load(model, load_external_data=False).graph.output
    return Task(
        name=name,
        model=model,
        declared=f'[outputs."{output.name}"]\ntask = "text"\nspaces = false\n',
        shapes={"x": (1, 3, _HEIGHT, _WIDTH)},
        metric="exact lines",
        calibration=lambda: _samples("calibration", _CALIBRATION_COUNT, _CALIBRATION_SEED)[0],
        score=partial(_score, model=model),
    )
