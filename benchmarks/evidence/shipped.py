"""Models that Python packages ship, as kinds of tasks with a known truth: detectors, recognizers of
text, a decoder.
"""

from functools import partial

import onnx

from benchmarks.task_kinds.kind import Half, Kind, TaskModel
from benchmarks.tasks import UNSEEN, load_task

_CHOSEN_BESIDE = ("ocr_cls", "ocr_rec", "ocr_rec_v6", "ocr_det", "ocr_det_v6", "letters")
_MOST_SAMPLES = 40


def _make(name: str) -> TaskModel:
    task = load_task(name)
    return TaskModel(
        model=onnx.load(task.model),
        calibration=task.calibration()[:_MOST_SAMPLES],
        metric=task.metric,
        measure=lambda run: task.score(run, "development"),
        outputs="",
        shapes=task.shapes,
    )


def _kinds(names: tuple[str, ...], half: Half) -> dict[str, Kind]:
    return {name: Kind(name=name, half=half, make=partial(_make, name)) for name in names}


SHIPPED = _kinds(_CHOSEN_BESIDE, "developed") | _kinds(UNSEEN, "independent")
