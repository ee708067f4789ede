"""NNCF, Intel's tool behind OpenVINO."""

import nncf
import onnx

from benchmarks.peers.arguments import Given, run_setting


def default(given: Given) -> None:
    """Run `nncf.quantize` with defaults."""
    _quantize(given, None)


def transformer(given: Given) -> None:
    """Run `nncf.quantize` with the model type transformer."""
    _quantize(given, nncf.ModelType.TRANSFORMER)


def _quantize(given: Given, model_type: "nncf.ModelType | None") -> None:
    samples = list(given.samples())
    quantized = nncf.quantize(
        onnx.load(given.model),
        nncf.Dataset(samples),
        model_type=model_type,
        subset_size=len(samples),
    )
    onnx.save(quantized, given.output)


if __name__ == "__main__":
    run_setting({"default": default, "transformer": transformer})
