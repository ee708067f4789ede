"""Graphs of fixed size whose mask hides padding, or has a hole.

PP-OCR's graphs of two releases, and networks with drawn weights. A hole is a product, a sum or a
quotient with the mask that is left out: a fault if the outputs on a drawn page change.
"""

import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont

from benchmarks.evidence.known import Case
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.places import package_folder, unpacked_folder
from benchmarks.tasks.task import Array
from edgepack.agent.runtime.opening import open_model_file
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.stages.fixed_stages import FixedStage, find_difference
from edgepack.packager.stages.padding_mask import add_padding_mask
from edgepack.packager.stages.pipeline_file import StageSource
from edgepack.stages.wiring import MASK_INPUT

QUESTION = "Does a graph with a mask compute what the graph of free size computes?"

_PAGE, _LINE = (1, 3, 160, 320), (1, 3, 48, 320)
_MOST_HOLES = 6
_FAULT = 0.01
_DRAWN = 3
_SAMPLES = 4
_MASK = f"x{MASK_INPUT}"
_WORDS = ("check valve", "net weight", "keep dry", "total amount")


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for name, half, path, shape, axes in _models(work):
        folder = Path(tempfile.mkdtemp(dir=work))
        stage = StageSource(name=name, path=path, given=path, shapes={"x": shape})
        masked = add_padding_mask(load_model(path), "x", shape, axes)
        whole = folder / "whole.onnx"
        save_model(masked, whole)
        files = []
        for number in range(_SAMPLES):
            files.append(folder / f"{number}.npz")
            files[-1].write_bytes(encode_arrays(_draw(shape, axes, number)))
        is_same = partial(_is_same, stage, files)
        yield Case(f"{name}, whole", half, True, partial(is_same, whole))
        feeds = _draw(shape, axes, _SAMPLES)
        expected = _run(whole, feeds)
        holes = _holes(masked)
        for place in sorted({int(one) for one in np.linspace(0, len(holes) - 1, _MOST_HOLES)}):
            spoiled = folder / f"{place}.onnx"
            save_model(_leave_out(masked, holes[place]), spoiled)
            moved = np.sqrt(((_run(spoiled, feeds) - expected) ** 2).mean())
            if moved > _FAULT * np.sqrt((expected**2).mean()):
                title = f"{name}, without {holes[place].op_type} {place}"
                yield Case(title, half, False, partial(is_same, spoiled))


def _models(work: Path) -> Iterator[tuple[str, Half, Path, tuple[int, ...], Sequence[int]]]:
    """Yield the name, half, file, fixed shape and padded axes of each model."""
    third = unpacked_folder("rapidocr-onnxruntime==1.2.3", "rapidocr_onnxruntime") / "models"
    fourth = package_folder("rapidocr_onnxruntime") / "models"
    yield "PP-OCRv4 det", "developed", fourth / "ch_PP-OCRv4_det_infer.onnx", _PAGE, (2, 3)
    yield "PP-OCRv4 rec", "developed", fourth / "ch_PP-OCRv4_rec_infer.onnx", _LINE, (3,)
    yield "PP-OCRv3 det", "independent", third / "ch_PP-OCRv3_det_infer.onnx", _PAGE, (2, 3)
    yield "PP-OCRv3 rec", "independent", third / "ch_PP-OCRv3_rec_infer.onnx", _LINE, (3,)
    for seed in range(_DRAWN):
        path = work / f"drawn-{seed}.onnx"
        onnx.save(_draw_network(seed), path)
        yield f"drawn {seed}", "independent", path, _PAGE, (2, 3)


def _draw_network(seed: int) -> onnx.ModelProto:
    """Return a network with two strides, a squeeze and excitation, and a map of half the size."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(kind: str, inputs: list[str], *shape: int, **options: Any) -> str:
        name = f"t{len(nodes)}"
        if shape:
            spread = (2.0 / np.prod(shape[1:])) ** 0.5
            drawn = rng.normal(0, spread, shape).astype(np.float32)
            weights.append(numpy_helper.from_array(drawn, f"{name}.w"))
            bias = rng.normal(0, 0.2, shape[0] if kind == "Conv" else shape[1])
            weights.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}.b"))
            inputs = [*inputs, f"{name}.w", f"{name}.b"]
        nodes.append(helper.make_node(kind, inputs, [name], **options))
        return name

    last, channels = "x", 3
    for width in (8, 16):
        last = add("Conv", [last], width, channels, 3, 3, strides=[2, 2], pads=[1] * 4)
        last = add("HardSwish", [last])
        channels = width
    mean = add("GlobalAveragePool", [last])
    gate = add("Sigmoid", [add("Conv", [mean], 16, 16, 1, 1)])
    last = add("Mul", [last, gate])
    last = add("Conv", [last], 16, 1, 5, 5, group=16, pads=[2] * 4)
    last = add("Relu", [last])
    last = add("ConvTranspose", [last], 16, 4, 2, 2, strides=[2, 2])
    nodes.append(helper.make_node("Conv", [last, "out.w"], ["y"], pads=[1] * 4))
    drawn = rng.normal(0, 0.2, (1, 4, 3, 3)).astype(np.float32)
    weights.append(numpy_helper.from_array(drawn, "out.w"))
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "rows", "columns"])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return model


def _is_same(stage: StageSource, files: Sequence[Path], path: Path) -> bool:
    """Compare as a build does."""
    fixed = FixedStage(path=path, shapes={}, mask={_MASK: ()})
    return not find_difference(stage, fixed, files)


def _draw(shape: tuple[int, ...], axes: Sequence[int], number: int) -> dict[str, Array]:
    """Return pixels of text that fill a part of a picture, and their mask."""
    sizes = [
        size * (4 - number % 3) // 5 // 8 * 8 if axis in axes else size
        for axis, size in enumerate(shape)
    ]
    ink, paper = ((20, 20, 20), (250, 248, 240)) if number % 2 else ((240,) * 3, (30, 34, 40))
    page = Image.new("RGB", (sizes[3], sizes[2]), paper)
    canvas = ImageDraw.Draw(page)
    for row in range(max(sizes[2] // 40, 1)):
        text = f"{_WORDS[(number + row) % len(_WORDS)]} {row + number}"
        canvas.text((8, 8 + 40 * row), text, font=ImageFont.load_default(26), fill=ink)
    pixels = np.zeros(shape, np.float32)
    drawn = np.asarray(page, np.float32).transpose(2, 0, 1) / 127.5 - 1
    pixels[:, :, : sizes[2], : sizes[3]] = drawn
    kept = np.zeros([size if axis in axes else 1 for axis, size in enumerate(shape)], np.float32)
    kept[:, :, : sizes[2], : sizes[3]] = 1
    return {"x": pixels, _MASK: kept}


def _run(path: Path, feeds: dict[str, Array]) -> Array:
    session = open_model_file(path)
    (values,) = session.run(feeds).values()
    session.close()
    return values


def _holes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that apply the mask to another tensor."""
    stored = {one.name for one in model.graph.initializer}
    of_mask = {_MASK}
    found = []
    for node in model.graph.node:
        given = [name for name in node.input if name and name not in stored]
        if given and all(name in of_mask for name in given):
            of_mask.update(node.output)
        elif node.op_type in ("Mul", "Add", "Div") and node.input[1] in of_mask:
            found.append(node)
    return found


def _leave_out(model: onnx.ModelProto, hole: onnx.NodeProto) -> onnx.ModelProto:
    spoiled = deepcopy(model)
    for node in spoiled.graph.node:
        if list(node.output) == list(hole.output):
            node.op_type = "Identity"
            del node.input[1:]
    return spoiled
