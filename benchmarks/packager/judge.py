"""Judge of a model of any tool: loading, quality, and speed against the float model.

Runs as a child process (`python -m benchmarks.packager.judge`), since a model may crash ONNX
Runtime. The CPU provider runs every model; timing uses a single thread.
"""

import argparse
from pathlib import Path

import msgspec
import onnx
import onnxruntime

from benchmarks.packager.timing import TIMED_SAMPLES, medians_in_turn_ms
from benchmarks.tasks import load_task
from benchmarks.tasks.float_model import open_float_model, open_on_cpu
from benchmarks.tasks.task import Run

TIMED_S = 5.0
"""Of timing, as long as it takes to see a median among other programs; less with `--quick`."""
QUICK_TIMED_S = 2.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of a model.

    Attributes:
        metric: The task's metric, greater is better.
        size_bytes: The model's file and the files with its weights.
        latency_ms, float_latency_ms: Medians of an inference each, measured in turn.
    """

    metric: float
    size_bytes: int
    latency_ms: float
    float_latency_ms: float


def loaded_marker(output: Path) -> Path:
    """Return the file that marks a model loaded by ONNX Runtime."""
    return output.with_suffix(".loaded")


def model_files(path: Path) -> tuple[Path, ...]:
    """Return a model's file and the files with its weights."""
    model = onnx.load(path, load_external_data=False)
    beside = {
        str(entry.value)
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return (path, *(path.parent / name for name in sorted(beside)))


def open_for_score(model: Path, *, for_npu: bool) -> Run:
    """Load a model on all cores.

    Args:
        model: The model.
        for_npu: Whether its numbers must equal exact integer arithmetic. ONNX Runtime otherwise
            fuses Quantize/Dequantize pairs into 8-bit products, which saturate on an x86 CPU
            without VNNI, and on no NPU.
    """
    options = onnxruntime.SessionOptions()
    if for_npu:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return open_on_cpu(model, options)


def main() -> None:
    """Judge the model of the command line and write the verdict."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--part", choices=("development", "evaluation"), required=True)
    parser.add_argument("--for-npu", action="store_true")
    parser.add_argument("--timed-s", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    run = open_float_model(given.model)
    loaded_marker(given.output).touch()
    task = load_task(given.task)
    metric = task.score(open_for_score(given.model, for_npu=given.for_npu), given.part)
    medians = medians_in_turn_ms(
        {"model": run, "float": open_float_model(task.model)},
        task.calibration()[:TIMED_SAMPLES],
        timed_s=given.timed_s,
    )
    verdict = Verdict(
        metric=metric,
        size_bytes=sum(file.stat().st_size for file in model_files(given.model)),
        latency_ms=medians["model"],
        float_latency_ms=medians["float"],
    )
    given.output.write_bytes(msgspec.json.encode(verdict))


if __name__ == "__main__":
    main()
