"""Text on a page: PP-OCRv6's detection model."""

from benchmarks.tasks.places import package_folder
from benchmarks.tasks.task import Run
from benchmarks.tasks.text_pages import text_detection_task

TASK = text_detection_task(
    "ocr_det_v6", package_folder("rapidocr") / "models" / "PP-OCRv6_det_small.onnx"
)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
