"""ONNX Runtime's own quantization tools."""

from pathlib import Path

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantType,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.execution_providers.qnn import (
    get_qnn_qdq_config,
    qnn_preprocess_model,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

from benchmarks.peers.arguments import Feeds, Given, run_setting


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """The samples, as ONNX Runtime wants to be fed."""

    def __init__(self, given: Given) -> None:
        self._samples = given.samples()

    def get_next(self) -> Feeds | None:
        """Return the next sample, or None at the end."""
        return next(self._samples, None)


def static_default(given: Given) -> None:
    """Run `quantize_static` with defaults: MinMax, S8S8, QDQ, no pre-processing."""
    quantize_static(given.model, given.output, _Reader(given))


def static_per_channel(given: Given) -> None:
    """Run the default, with weights per channel."""
    quantize_static(given.model, given.output, _Reader(given), per_channel=True)


def static_percentile(given: Given) -> None:
    """Run the default, with Percentile in place of MinMax."""
    quantize_static(
        given.model,
        given.output,
        _Reader(given),
        calibrate_method=CalibrationMethod.Percentile,
    )


def static_documented(given: Given) -> None:
    """Run the documented advice for an x86 CPU: pre-processing, U8S8 with a reduced range.

    Per channel, the documented remedy for accuracy. `reduce_range` is for CPUs without VNNI.
    """
    prepared = given.output.with_name("prepared.onnx")
    try:
        quant_pre_process(given.model, prepared)
    except Exception:  # noqa: BLE001 - it raises just that, or AssertionError, by the model
        # Symbolic shape inference gives up on some models; its documentation says to leave it out.
        quant_pre_process(given.model, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        given.output,
        _Reader(given),
        per_channel=True,
        reduce_range=not _has_vnni(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def dynamic(given: Given) -> None:
    """Run `quantize_dynamic` with defaults."""
    quantize_dynamic(given.model, given.output)


def qnn_a8w8(given: Given) -> None:
    """Run its QNN tools as documented: shapes fixed, model prepared, then 8-bit activations."""
    _qnn(given, QuantType.QUInt8)


def qnn_a16w8(given: Given) -> None:
    """Run its QNN tools as documented, with 16-bit activations."""
    _qnn(given, QuantType.QUInt16)


def _qnn(given: Given, activations: QuantType) -> None:
    model = onnx.load(given.model)
    for name, shape in given.shapes.items():
        make_input_shape_fixed(model.graph, name, shape)
    if given.shapes:
        fix_output_shapes(model)
    fixed = given.output.with_name("fixed.onnx")
    onnx.save(model, fixed)
    prepared = given.output.with_name("prepared.onnx")
    changed = qnn_preprocess_model(fixed, prepared)
    source = prepared if changed else fixed
    config = get_qnn_qdq_config(
        source, _Reader(given), activation_type=activations, weight_type=QuantType.QUInt8
    )
    quantize(source, given.output, config)


def _has_vnni() -> bool:
    return "vnni" in Path("/proc/cpuinfo").read_text()


if __name__ == "__main__":
    run_setting(
        {
            "static-default": static_default,
            "static-per-channel": static_per_channel,
            "static-percentile": static_percentile,
            "static-documented": static_documented,
            "dynamic": dynamic,
            "qnn-a8w8": qnn_a8w8,
            "qnn-a16w8": qnn_a16w8,
        }
    )
