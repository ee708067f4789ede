"""onnx-neural-compressor, Intel's tool for ONNX models."""

from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import QuantFormat, config, quantize

from benchmarks.peers.arguments import Feeds, Given, run_setting


class _Reader(data_reader.CalibrationDataReader):  # type: ignore[misc]
    """The samples, as the tool wants to be fed: once through, then from the start again."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self.rewind()

    def get_next(self) -> Feeds | None:
        """Return the next sample, or None at the end."""
        return next(self._samples, None)

    def rewind(self) -> None:
        """Start again."""
        self._samples = self._given.samples()


def default(given: Given) -> None:
    """Run `StaticQuantConfig` with defaults: QOperator, U8S8."""
    quantize(given.model, given.output, config.StaticQuantConfig(_Reader(given)))


def qdq(given: Given) -> None:
    """Run QDQ in place of QOperator, per channel, an option of its documentation."""
    quantize(
        given.model,
        given.output,
        config.StaticQuantConfig(_Reader(given), quant_format=QuantFormat.QDQ, per_channel=True),
    )


if __name__ == "__main__":
    run_setting({"default": default, "qdq": qdq})
