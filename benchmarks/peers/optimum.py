"""optimum-onnx, Hugging Face's tool: its presets for instruction sets, static."""

import shutil
from collections.abc import Iterator

from datasets import DatasetInfo
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import (
    AutoCalibrationConfig,
    AutoQuantizationConfig,
    QuantizationConfig,
)

from benchmarks.peers.arguments import Feeds, Given, run_setting


class _Dataset:
    """The samples without their batch axis, which the tool's reader puts in front again."""

    info = DatasetInfo()
    split = "calibration"

    def __init__(self, given: Given) -> None:
        self._given = given
        self.num_rows = sum(1 for _ in given.samples())

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in self._given.samples():
            yield {name: value[0] for name, value in feeds.items()}


def avx2(given: Given) -> None:
    """Run the preset `avx2`."""
    _quantize(given, AutoQuantizationConfig.avx2(is_static=True))


def avx512_vnni(given: Given) -> None:
    """Run the preset `avx512_vnni`."""
    _quantize(given, AutoQuantizationConfig.avx512_vnni(is_static=True))


def _quantize(given: Given, config: QuantizationConfig) -> None:
    folder = given.output.with_name("optimum")
    folder.mkdir()
    shutil.copyfile(given.model, folder / "model.onnx")
    quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
    samples = _Dataset(given)
    ranges = quantizer.fit(
        samples,
        AutoCalibrationConfig.minmax(samples),
        onnx_augmented_model_name=str(folder / "augmented.onnx"),
        operators_to_quantize=config.operators_to_quantize,
    )
    quantizer.quantize(config, folder / "quantized", calibration_tensors_range=ranges)
    shutil.move(folder / "quantized" / "model_quantized.onnx", given.output)


if __name__ == "__main__":
    run_setting({"avx2": avx2, "avx512_vnni": avx512_vnni})
