"""Text on a page: PP-OCRv3's detection model."""

from benchmarks.tasks.places import unpacked_folder
from benchmarks.tasks.task import Run
from benchmarks.tasks.text_pages import text_detection_task

_PACKAGE = unpacked_folder("rapidocr-onnxruntime==1.2.3", "rapidocr_onnxruntime")

TASK = text_detection_task("ocr_det_v3", _PACKAGE / "models" / "ch_PP-OCRv3_det_infer.onnx")


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
