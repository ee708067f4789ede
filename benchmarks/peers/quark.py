"""AMD Quark, the quantizer of the Ryzen AI documentation."""

from onnxruntime.quantization import CalibrationDataReader
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config import Config, get_default_config

from benchmarks.peers.arguments import Feeds, Given, run_setting


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Samples in the tool's reader format; the tool reads the samples several times."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self.rewind()

    def get_next(self) -> Feeds | None:
        """Return the next sample, or None at the end."""
        return next(self._samples, None)

    def rewind(self) -> None:
        """Start again."""
        self._samples = self._given.samples()

    reset_iter = rewind


def xint8(given: Given) -> None:
    """Run power-of-two scales, for the NPU's convolutions."""
    _quantize(given, "XINT8")


def a8w8(given: Given) -> None:
    """Run 8-bit activations and weights with float scales."""
    _quantize(given, "A8W8")


def a16w8(given: Given) -> None:
    """Run 16-bit activations, 8-bit weights with float scales."""
    _quantize(given, "A16W8")


def _quantize(given: Given, name: str) -> None:
    quantizer = ModelQuantizer(Config(global_quant_config=get_default_config(name)))
    quantizer.quantize_model(str(given.model), str(given.output), _Reader(given))


if __name__ == "__main__":
    run_setting({"xint8": xint8, "a8w8": a8w8, "a16w8": a16w8})
