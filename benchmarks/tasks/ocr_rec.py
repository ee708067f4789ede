"""Reading a line of text: PP-OCRv4's recognition model (convolutions and attention, CTC)."""

from benchmarks.tasks.places import package_folder
from benchmarks.tasks.reading import reading_task
from benchmarks.tasks.task import Run

TASK = reading_task(
    "ocr_rec", package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_rec_infer.onnx"
)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
