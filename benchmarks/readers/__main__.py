"""Compares the expected loss of lines with the loss by labels, on drawn lines.

    python -m benchmarks.readers --output docs/benchmarks/readers

The expected loss comes from the float model's probabilities alone (`edgepack.tasks.text.costs`), as
in a build without labels. Variants have weights of fewer bits, or products of 8 and 16 bits in
some of the nodes (ONNX Runtime's static quantization). Nothing was chosen by these lines.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.tasks import ocr_rec, ocr_rec_v3, ocr_rec_v6
from benchmarks.tasks.reading import draw_lines, letters_of
from benchmarks.tasks.task import Array, Feeds
from edgepack.agent.runtime.opening import open_model_file
from edgepack.durable import write_file
from edgepack.packager.source.model import load_source
from edgepack.tasks.text.costs import expected_cost
from edgepack.tasks.text.decoding import Text, read_text
from edgepack.tasks.text.head import TextHead

_READERS = {"PP-OCRv3": ocr_rec_v3.TASK, "PP-OCRv4": ocr_rec.TASK, "PP-OCRv6": ocr_rec_v6.TASK}
_LINES, _SEED = 600, 777
_CALIBRATION, _CALIBRATION_SEED = 40, 78
_BITS = (7, 6)
_SHARES = ((1.0, 16), (0.3, 8), (0.7, 8))
"""Share of the nodes with weights that are quantized, and bits of their activations."""
_WEIGHTED = ("Conv", "MatMul", "Gemm")

_ABOUT = f"""# Lines that readers lose

`make bench-readers` writes this page, from {_LINES} drawn lines that no build saw. *Expected* is
what a build expects without labels, by the float model's probabilities. *Lost* is what the labels
say: the lines that only the float model reads right, less those that only the variant reads right.
`spaces = false` is an evaluation without spaces ([`text`](../../how-to/outputs.md)).
"""
_COLUMNS = (
    *("reader", "variant", "lines that change", "expected", "lost"),
    *("`spaces = false`: change", "expected", "lost"),
)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    drawn = draw_lines(_LINES, _SEED)
    given.output.mkdir(parents=True, exist_ok=True)
    rows = [row for name in _READERS for row in _measure(name, drawn)]
    table = [_COLUMNS, ("---",) * len(_COLUMNS), *rows]
    lines = [f"| {' | '.join(row)} |" for row in table]
    page = "\n".join([_ABOUT, *lines, ""])
    write_file(given.output / "README.md", page.encode())
    return 0


def _measure(name: str, drawn: dict[str, Array]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a reader."""
    path = _READERS[name].model
    letters = letters_of(path)
    spaces = tuple(kind for kind, letter in enumerate(letters) if letter.isspace())
    model = load_source(path, _READERS[name].shapes).model
    feeds: list[Feeds] = [{"x": image[None].astype(np.float32)} for image in drawn["images"]]
    with tempfile.TemporaryDirectory() as folder:
        whole, float_file = Path(folder, "whole.onnx"), Path(folder, "float.onnx")
        onnx.save(model, whole)
        quant_pre_process(whole, float_file, skip_symbolic_shape=True)
        expected = list(_run(float_file, feeds))
        for variant, file in _variants(float_file):
            got = list(_run(file, feeds))
            cells: list[str] = []
            for ignores_spaces in (False, True):
                head = TextHead(output="y", blank=0, spaces=spaces, ignores_spaces=ignores_spaces)
                cells += _compare(head, letters, drawn["labels"].tolist(), expected, got)
            print(name, variant, *cells, file=sys.stderr, flush=True)
            yield name, variant, *cells


def _compare(
    head: TextHead, letters: list[str], labels: list[str], expected: list[Array], got: list[Array]
) -> tuple[str, str, str]:
    """Return how many lines change, are expected to be lost, and are lost by the labels."""
    changed, cost, lost = 0, 0.0, 0
    for label, want, have in zip(labels, expected, got, strict=True):
        outputs = {"y": want}
        one, other = read_text(head, outputs), read_text(head, {"y": have})
        if one == other:
            continue
        changed += 1
        cost += expected_cost(head, outputs, one, other).whole
        lost += _is_right(head, letters, label, one) - _is_right(head, letters, label, other)
    return str(changed), f"{cost:.1f}", str(lost)


def _is_right(head: TextHead, letters: list[str], label: str, text: Text) -> bool:
    kept = "" if head.ignores_spaces else " "
    read = kept.join("".join(letters[kind] for kind in text).split())
    return read == kept.join(label.split())


def _variants(float_file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each variant, one at a time."""
    file = float_file.with_name("variant.onnx")
    for bits in _BITS:
        onnx.save(_with_weights_of(bits, onnx.load(float_file)), file)
        yield f"weights of {bits} bits", file
    nodes = [node.name for node in onnx.load(float_file).graph.node if node.op_type in _WEIGHTED]
    rng = random.Random(_SEED)
    for share, bits in _SHARES:
        quantize_static(
            float_file,
            file,
            _Samples(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            nodes_to_quantize=[name for name in nodes if rng.random() < share],
            activation_type=QuantType.QUInt16 if bits == 16 else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"UseQDQContribOps": True},
        )
        yield f"a{bits}w8, {share:.0%} of the products", file


def _with_weights_of(bits: int, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with rounded weights of products."""
    weighted = {
        name for node in model.graph.node if node.op_type in _WEIGHTED for name in node.input[1:2]
    }
    for tensor in model.graph.initializer:
        if tensor.name in weighted:
            values = numpy_helper.to_array(tensor)
            axes = tuple(range(1, values.ndim)) if values.ndim > 2 else 0
            step = np.abs(values).max(axis=axes, keepdims=True) / (2 ** (bits - 1) - 1) + 1e-12
            rounded = (np.round(values / step) * step).astype(values.dtype)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return model


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Drawn lines for ranges."""

    def __init__(self) -> None:
        images = draw_lines(_CALIBRATION, _CALIBRATION_SEED)["images"]
        self._feeds = iter([{"x": image[None].astype(np.float32)} for image in images])

    def get_next(self) -> Feeds | None:
        """Return the next sample."""
        return next(self._feeds, None)


def _run(file: Path, feeds: list[Feeds]) -> Iterator[Array]:
    session = open_model_file(file)
    for sample in feeds:
        yield next(iter(session.run(sample).values()))
    session.close()


if __name__ == "__main__":
    sys.exit(main())
