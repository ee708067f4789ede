"""Detectors that are drawn: scenes of objects, and the outputs that a float model gives of them."""

import numpy as np
import numpy.typing as npt

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.detections.layouts import DetectionHead

YOLO = DetectionHead(
    layout="yolo", outputs=("output0",), order="cxcywh", activation="none", size=(320, 320)
)
SIDE = 320
Floats = npt.NDArray[np.float64]


def draw_scene(rng: np.random.Generator, scores: list[float]) -> Floats:
    """(objects, 6): centre, size, score and class of objects in cells of their own."""
    cells = rng.permutation(25)[: len(scores)]
    centres = np.stack([cells % 5, cells // 5], axis=1) * 60.0 + 40.0
    sizes = rng.uniform(24, 48, (len(scores), 2))
    classes = rng.integers(0, 3, len(scores))
    return np.column_stack([centres, sizes, scores, classes])


def draw_scenes(count: int, scores: list[float], seed: int = 0) -> list[Floats]:
    """Scenes with one object of each score, a little up or down."""
    rng = np.random.default_rng(seed)
    return [
        draw_scene(rng, list(np.clip(np.array(scores) + rng.normal(0, 0.01, len(scores)), 0, 1)))
        for _ in range(count)
    ]


def as_yolo(scene: Floats) -> Outputs:
    """A scene as YOLOv8's head gives it: [1, 4 + classes, places], a neighbour beside each."""
    rows = np.zeros((100, 7), np.float32)
    rows[:, 2:4] = 8.0
    for number, (x, y, width, height, score, kind) in enumerate(scene):
        for place, step in ((number, 0.0), (number + 50, 2.0)):
            rows[place, :4] = x + step, y, width, height
            rows[place, 4 + int(kind)] = score - 0.1 * (place >= 50)
    return {"output0": rows.T[None]}


def with_scores(scene: Floats, change: "float | Floats") -> Floats:
    """The same with other scores: those that it has, and a difference."""
    changed = scene.copy()
    changed[:, 4] = np.clip(changed[:, 4] + change, 0.0, 1.0)
    return changed
