"""Reading a line of text: PP-OCRv3's recognition model (convolutions and attention, CTC)."""

from benchmarks.tasks.places import unpacked_folder
from benchmarks.tasks.reading import reading_task
from benchmarks.tasks.task import Run

_PACKAGE = unpacked_folder("rapidocr-onnxruntime==1.2.3", "rapidocr_onnxruntime")

TASK = reading_task("ocr_rec_v3", _PACKAGE / "models" / "ch_PP-OCRv3_rec_infer.onnx")


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return TASK.score(run, "development")
