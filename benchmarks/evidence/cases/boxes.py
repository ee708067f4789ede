"""Pairs of outputs that are boxes and their scores, and pairs that look like them.

Detectors that Python packages ship, with boxes and scores in two outputs, on pictures with few and
with many objects. The others are drawn: four numbers and a probability at each of many places.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.evidence.known import Case
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks import load_task
from benchmarks.tasks.task import Array, Feeds
from edgepack.agent.runtime.opening import open_model_file
from edgepack.tasks.values.parts import find_parts

QUESTION = "Are two outputs boxes and their scores?"

_SAMPLES = 6
_DRAWN = {
    "joints and their visibility": (17, 0.7),
    "gains of frames and the probability of speech": (300, 0.5),
    "colours of cells and their cover": (400, 0.35),
    "rotations of parts and their presence": (24, 0.9),
    "forces of steps and the contact of a foot": (200, 0.6),
}
"""Places, and the share of them with a high probability."""

Pair = tuple[Array, Array]


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for name, half, pairs in detectors():
        for words, chosen in _by_number(pairs).items():
            yield Case(f"{name}, {words}", half, True, partial(_are_boxes, chosen))
    for number, (name, (places, share)) in enumerate(_DRAWN.items()):
        drawn = list(_draw(number, places, share))
        yield Case(name, "independent", False, partial(_are_boxes, drawn))


def detectors() -> Iterator[tuple[str, Half, list[Pair]]]:
    """Yield boxes and scores of each sample of shipped detectors."""
    for name, half, split in (
        ("letters", "developed", _split_yolox),
        ("portraits", "independent", _split_yolov8),
    ):
        task = load_task(name)
        session = open_model_file(task.model)
        samples: Sequence[Feeds] = task.calibration()[: 4 * _SAMPLES]
        yield name, half, [split(next(iter(session.run(one).values()))) for one in samples]  # type: ignore[list-item]
        session.close()


def _split_yolox(rows: Array) -> Pair:
    return rows[..., :4], rows[..., 4:5] * rows[..., 5:]


def _split_yolov8(columns: Array) -> Pair:
    rows = columns.transpose(0, 2, 1)
    return rows[..., :4], rows[..., 4:]


def _by_number(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Return the samples with the fewest and with the most objects."""
    ordered = sorted(pairs, key=lambda pair: float((pair[1].max(axis=-1) > 0.25).mean()))
    return {"few objects": ordered[:_SAMPLES], "many objects": ordered[-_SAMPLES:]}


def _are_boxes(pairs: list[Pair]) -> bool:
    outputs = [{"boxes": boxes, "scores": scores} for boxes, scores in pairs]
    return any(part.scored_by for part in find_parts(outputs, ["boxes", "scores"]))


def _draw(seed: int, places: int, share: float) -> Iterator[Pair]:
    rng = np.random.default_rng([23, seed])
    for _ in range(_SAMPLES):
        is_high = rng.random((1, places, 1)) < share
        scores = np.where(is_high, rng.beta(9, 2, is_high.shape), rng.beta(1, 60, is_high.shape))
        yield rng.normal(0, 1, (1, places, 4)).astype(np.float32), scores.astype(np.float32)
