"""Olive, Microsoft's tool: static quantization, for the CPU and for QNN, with its defaults."""

import shutil
from pathlib import Path
from typing import Any

import olive
from olive.data.component.dataset import BaseDataset
from olive.data.registry import Registry

from benchmarks.peers.arguments import Given, run_setting

_SAMPLES = "benchmark_samples"


def static(given: Given) -> None:
    """Run the pass OnnxStaticQuantization for the CPU."""
    _run(given, "cpu", "CPUExecutionProvider")


def qnn(given: Given) -> None:
    """Run the same pass for the QNN provider; Olive then uses ONNX Runtime's settings for QNN."""
    _run(given, "npu", "QNNExecutionProvider")


def _run(given: Given, device: str, provider: str) -> None:
    @Registry.register_dataset(_SAMPLES)  # type: ignore[untyped-decorator,unused-ignore]
    def _samples(**_options: Any) -> BaseDataset:
        """Return pairs of unchanged inputs and a label that calibration ignores."""
        return BaseDataset([(feeds, 0) for feeds in given.samples()])

    work = given.output.with_name("olive")
    accelerator = {"device": device, "execution_providers": [provider]}
    olive.run(
        {
            "input_model": {"type": "ONNXModel", "model_path": str(given.model)},
            "systems": {"local": {"type": "LocalSystem", "accelerators": [accelerator]}},
            "data_configs": [
                {
                    "name": "samples",
                    "type": "DataContainer",
                    "load_dataset_config": {"type": _SAMPLES},
                    "pre_process_data_config": {"type": "skip_pre_process"},
                    "post_process_data_config": {"type": "skip_post_process"},
                    "dataloader_config": {"type": "no_auto_batch_dataloader"},
                }
            ],
            "passes": {"quantize": {"type": "OnnxStaticQuantization", "data_config": "samples"}},
            "target": "local",
            "output_dir": str(work / "output"),
            "cache_dir": str(work / "cache"),
        }
    )
    _move(work / "output", given.output)


def _move(folder: Path, output: Path) -> None:
    """Move the only model of Olive's output folder, and its weights, to the output path."""
    (model,) = folder.rglob("*.onnx")
    for weights in model.parent.glob("*.data"):
        shutil.move(weights, output.parent)
    shutil.move(model, output)


if __name__ == "__main__":
    run_setting({"static": static, "qnn": qnn})
