"""Measured updates: a model before and after, with the calibration samples of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper

from benchmarks.deltas import network
from benchmarks.deltas.network import Weights, as_onnx, fresh, train
from benchmarks.tasks.ocr_rec import TASK as OCR
from benchmarks.tasks.task import Feeds

HEAD = "head-only fine-tune"
RECALIBRATED = "recalibrated activations"
ADDED = "one added layer"
WHOLE = "fine-tune of all layers"
RETRAIN = "full retrain"

_FINE_RATE = 1e-4
_SMALL_RATE = 1e-5
_OCR_RATE = 0.05
_OCR_EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model, its calibration samples, and its fixed shapes."""

    model: onnx.ModelProto
    samples: Sequence[Feeds]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update.

    Attributes:
        model: Which model, in words.
        what: The change.
        old, new: Before and after.
    """

    model: str
    what: str
    old: Side
    new: Side


def updates() -> Iterator[Update]:
    """Yield all updates; training takes a quarter of a minute."""
    yield from _digits_updates()
    yield from _ocr_updates()


def _digits_updates() -> Iterator[Update]:
    images, labels = network.digits()
    first, later = slice(0, 700), slice(700, 1400)
    old = train(fresh(0), images[first], labels[first], epochs=6, rate=1e-3, seed=1)

    def tuned(weights: Weights, *, rate: float = _FINE_RATE, only: tuple[str, ...] = ()) -> Weights:
        return train(weights, images[later], labels[later], epochs=2, rate=rate, seed=2, only=only)

    deeper = old | fresh(3, ["added"])
    scratch = train(fresh(7), images[:1400], labels[:1400], epochs=6, rate=1e-3, seed=8)
    fine, finer = f"{WHOLE}, steps of {_FINE_RATE:g}", f"{WHOLE}, steps of {_SMALL_RATE:g}"
    samples = [{"x": image[None]} for image in images[:100]]
    others = [{"x": image[None]} for image in images[700:800]]
    for what, weights, calibration in (
        (HEAD, tuned(old, rate=1e-3, only=("head",)), samples),
        (RECALIBRATED, old, others),
        (ADDED, tuned(deeper, rate=1e-3, only=("added", "head")), samples),
        (finer, tuned(old, rate=_SMALL_RATE), samples),
        (fine, tuned(old), samples),
        (RETRAIN, scratch, samples),
    ):
        before = Side(model=as_onnx(old), samples=samples, shapes={})
        after = Side(model=as_onnx(weights), samples=calibration, shapes={})
        yield Update(model="digits, 1.1 million weights", what=what, old=before, new=after)


def _ocr_updates() -> Iterator[Update]:
    model = onnx.load(OCR.model)
    samples = OCR.calibration()
    old = Side(model=model, samples=samples[:40], shapes=OCR.shapes)
    tuned = _with_tuned_head(model, samples[100:])
    for what, new in (
        (HEAD, Side(model=tuned, samples=samples[:40], shapes=OCR.shapes)),
        (RECALIBRATED, Side(model=model, samples=samples[60:100], shapes=OCR.shapes)),
    ):
        yield Update(model="PP-OCRv4 reader, 2.7 million weights", what=what, old=old, new=new)


def _with_tuned_head(model: onnx.ModelProto, samples: Sequence[Feeds]) -> onnx.ModelProto:
    """Return the model with its last matrix and bias trained further on its best samples.

    Each time step learns the class that the model itself holds for likeliest, by stochastic
    gradient descent on cross-entropy: self-training, as for new fonts without labels.
    """
    tuned = onnx.ModelProto()
    tuned.CopyFrom(model)
    held = {
        node.output[0]: node.attribute[0].t
        for node in tuned.graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    product = [node for node in tuned.graph.node if node.op_type == "MatMul"][-1]
    (add,) = [node for node in tuned.graph.node if product.output[0] in node.input]
    (bias_name,) = [name for name in add.input if name in held]
    weights = numpy_helper.to_array(held[product.input[1]]).copy()
    bias = numpy_helper.to_array(held[bias_name]).copy()
    features = _outputs(model, product.input[0], samples)
    targets = (features @ weights + bias).argmax(axis=1)
    for _ in range(_OCR_EPOCHS):
        for start in range(0, len(features), 64):
            rows, wanted = features[start : start + 64], targets[start : start + 64]
            scores = rows @ weights + bias
            slope = np.exp(scores - scores.max(axis=1, keepdims=True))
            slope /= slope.sum(axis=1, keepdims=True)
            slope[np.arange(len(rows)), wanted] -= 1
            weights -= _OCR_RATE / len(rows) * (rows.T @ slope)
            bias -= _OCR_RATE / len(rows) * slope.sum(axis=0)
    for name, values in ((product.input[1], weights), (bias_name, bias)):
        held[name].CopyFrom(numpy_helper.from_array(values, name))
    return tuned


def _outputs(
    model: onnx.ModelProto, tensor: str, samples: Sequence[Feeds]
) -> npt.NDArray[np.float32]:
    """Return the values of a tensor, float32 (all rows, its last axis)."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    opened.graph.output.append(onnx.ValueInfoProto(name=tensor))
    session = onnxruntime.InferenceSession(opened.SerializeToString())
    rows = [session.run([tensor], feeds)[0] for feeds in samples]
    return np.concatenate([row.reshape(-1, row.shape[-1]) for row in rows])
