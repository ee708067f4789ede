"""Text on a page: PP-OCRv4's detection model (convolutions, a map)."""

from benchmarks.tasks.places import package_folder
from benchmarks.tasks.task import Run
from benchmarks.tasks.text_pages import text_detection_task

TASK = text_detection_task(
    "ocr_det", package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_det_infer.onnx"
)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
