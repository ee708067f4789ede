"""Encoder-decoders whose cache is right, or has a fault.

The folders of the tests, as they are and with their weights shuffled: other models of the same
architectures. Their weights are floats, 16-bit floats, or 8 bits in both decoders.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.evidence.constants import ROOT
from benchmarks.evidence.known import Case
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.task import Array
from edgepack.errors import BuildError
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import read_pipeline

QUESTION = "Does a decoder with a cache continue the texts of its decoder?"

_FOLDERS: Mapping[str, Half] = {
    "encoder_decoders/marian": "developed",
    "encoder_decoders/t5-drawn": "developed",
    "speech": "independent",
}
_CACHED = "decoder_with_past_model.onnx"
_GRAPHS = ("encoder_model.onnx", "decoder_model.onnx", _CACHED)
_SHUFFLES = 4
_SAMPLES = 3

Change = Callable[[onnx.ModelProto], None]


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for name, half in _FOLDERS.items():
        for number in range(_SHUFFLES):
            source = _copy(ROOT / "tests" / "huggingface" / name, work)
            _change(source, _GRAPHS, partial(shuffle, seed=number))
            title = f"{Path(name).name} {number}"
            for words, prepare in _FORMATS.items():
                folder = _copy(source, work)
                prepare(folder)
                yield Case(f"{title}, {words}", half, True, partial(_continues, folder))
            for words, fault in _FAULTS.items():
                folder = _copy(source, work)
                _change(folder, (_CACHED,), fault)
                yield Case(f"{title}, {words}", half, False, partial(_continues, folder))


def _copy(source: Path, work: Path) -> Path:
    return Path(shutil.copytree(source, Path(tempfile.mkdtemp(dir=work)) / source.name))


def _change(folder: Path, names: tuple[str, ...], change: Change) -> None:
    for name in names:
        model = onnx.load(folder / name)
        change(model)
        onnx.save(model, folder / name)


def _continues(folder: Path) -> bool:
    """Check the caches as a build does."""
    pipeline = FloatPipeline(read_pipeline(folder))
    rng = np.random.default_rng(3)
    samples = []
    for number in range(_SAMPLES):
        feeds: dict[str, Array] = {}
        for one in read_pipeline(folder).wiring.inputs:
            shape = tuple(size if isinstance(size, int) else 5 + number for size in one.shape)
            is_mask = "mask" in one.name
            tokens = np.ones(shape) if is_mask else rng.integers(1, 24, shape)
            feeds[one.name] = (
                tokens.astype(np.int64) if one.dtype == "int64" else rng.normal(0, 1, shape)
            ).astype(one.dtype)
        samples.append(feeds)
    try:
        pipeline.check_caches(samples)
    except BuildError as error:
        if "does not continue" not in error.problem:
            raise
        return False
    return True


def _weights(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, Array]]:
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > 1:
            yield tensor, values


def shuffle(model: onnx.ModelProto, seed: int) -> None:
    """Shuffle the values of each weight, of equal weights of other graphs in the same way."""
    for tensor, values in _weights(model) if seed else ():
        digest = hashlib.sha256(values.tobytes()).digest()
        rng = np.random.default_rng([seed, *digest])
        mixed = rng.permutation(values.ravel()).reshape(values.shape)
        tensor.CopyFrom(numpy_helper.from_array(mixed, tensor.name))


def _halve(model: onnx.ModelProto) -> None:
    """Round weights to 16-bit floats."""
    for tensor, values in _weights(model):
        rounded = values.astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))


def _quantize(folder: Path) -> None:
    for name in _GRAPHS[1:]:
        quantize_dynamic(folder / name, folder / name, weight_type=QuantType.QInt8)


def _rename(model: onnx.ModelProto, first: str, second: str) -> None:
    """Exchange two inputs of a graph."""
    swapped = {first: second, second: first}
    for node in model.graph.node:
        node.input[:] = [swapped.get(name, name) for name in node.input]


def _swap_layers(model: onnx.ModelProto, what: str) -> None:
    layers = sum(one.name.endswith("decoder.key") for one in model.graph.input)
    names = [f"past_key_values.{layer}.{what}" for layer in range(layers)]
    if layers > 1:
        _rename(model, names[0], names[1])
    else:
        side = what.rpartition(".")[0]
        _rename(model, f"past_key_values.0.{side}.key", f"past_key_values.0.{side}.value")


_FORMATS: Mapping[str, Callable[[Path], None]] = {
    "floats": lambda _: None,
    "16-bit floats": lambda folder: _change(folder, _GRAPHS, _halve),
    "8 bits": _quantize,
}
_FAULTS: Mapping[str, Change] = {
    "keys of two layers exchanged": partial(_swap_layers, what="decoder.key"),
    "values of two layers exchanged": partial(_swap_layers, what="decoder.value"),
    "the encoder's keys exchanged": partial(_swap_layers, what="encoder.key"),
    "another model": partial(shuffle, seed=99),
}
"""A model of one layer exchanges keys and values."""
