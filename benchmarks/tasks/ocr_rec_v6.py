"""Reading a line of text: PP-OCRv6's recognition model (18,710 letters, CTC)."""

from benchmarks.tasks.places import package_folder
from benchmarks.tasks.reading import reading_task
from benchmarks.tasks.task import Run

TASK = reading_task("ocr_rec_v6", package_folder("rapidocr") / "models" / "PP-OCRv6_rec_small.onnx")


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
