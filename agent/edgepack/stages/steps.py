"""Host steps of a pipeline, in numpy: each takes tensors and gives tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgepack.stages import pixels as images
from edgepack.stages.text_boxes import find_text
from edgepack.stages.wiring import (
    MASK_TENSOR,
    Argmax,
    Boxes,
    Crop,
    Ctc,
    Keep,
    Resize,
    Step,
    Turn,
)
from edgepack.tasks.arrays import Tensor

Value = Tensor | list[Tensor]
Shapes = Mapping[str, tuple[int | str, ...]]
"""By tensor the shape of the graph's input that takes it, masks of padding included."""

_FREE = ("", "")


def run_step(step: Step, values: Mapping[str, Value], shapes: Shapes) -> dict[str, Value]:
    """Run a step on tensors, or on each item of a list.

    Args:
        step: The step.
        values: Known tensors by name.
        shapes: See `Shapes`.

    Raises:
        ValueError: A tensor has another rank or size than the step needs.
    """
    given = [values[name] for name in step.reads]
    try:
        return _run_step(step, given, shapes)
    except (IndexError, TypeError, ValueError) as error:
        told = ", ".join(map(_describe, step.reads, given))
        raise ValueError(f"{step.words} does not fit its tensors, {told}: {error}") from error


def _describe(name: str, value: Value) -> str:
    """Return the name of a tensor and its shape, or the number of the list's tensors."""
    if isinstance(value, list):
        return f"{name} a list of {len(value)}"
    return f"{name} {list(value.shape)}"


def _run_step(step: Step, given: Sequence[Value], shapes: Shapes) -> dict[str, Value]:
    if isinstance(step, Ctc):
        return _read_texts(step, given[0] if isinstance(given[0], list) else [given[0]])
    lists = [value for value in given if isinstance(value, list)]
    if isinstance(step, Resize) and lists:
        widths = _widths_together(step, [one.shape[1:3] for one in lists[0]])
        pairs = zip(lists[0], widths, strict=True)
        each = [_resize(step, one, shapes=shapes, least=width) for one, width in pairs]
    elif lists:
        each = [_run(step, _items(given, item), shapes) for item in range(len(lists[0]))]
    else:
        return dict(_run(step, _items(given, 0), shapes))
    masks = {name + MASK_TENSOR for name in step.writes} & shapes.keys()
    return {name: [one[name] for one in each] for name in (*step.writes, *masks)}


def _items(given: Sequence[Value], item: int) -> list[Tensor]:
    """Return a tensor for each value: an item of a list, or the tensor itself."""
    return [one[item] if isinstance(one, list) else one for one in given]


def _run(step: Step, given: Sequence[Tensor], shapes: Shapes) -> dict[str, Any]:
    act: Callable[..., dict[str, Any]] = _ACTS[type(step)]
    return act(step, *given, **({"shapes": shapes} if isinstance(step, Resize) else {}))


def _widths_together(step: Resize, sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the least width of each line: of the longest of the lines that go together."""
    aspects = [width / height for height, width in sizes]
    order = sorted(range(len(sizes)), key=aspects.__getitem__)
    widths = [0] * len(sizes)
    for start in range(0, len(order), step.together):
        group = order[start : start + step.together]
        for line in group:
            widths[line] = int(step.height * max(aspects[one] for one in group))
    return widths


def _resize(step: Resize, picture: Tensor, *, shapes: Shapes, least: int = 0) -> dict[str, Any]:
    height, width = picture.shape[1:3]
    if not height or not width:
        raise ValueError(f"a picture of {width} x {height} pixels has no pixel")
    fixed = shapes.get(step.output, _FREE)[-2:]
    high, wide = (size if isinstance(size, int) else 0 for size in fixed)
    mask = step.output + MASK_TENSOR
    if step.fit == "line":
        high = high or step.height
        wanted = max(step.width, least, int(high * width / height))
        filled = high, min(wanted, wide or step.most_width)
        down, across = high, max(1, min(filled[1], math.ceil(high * width / height)))
    elif high and wide and mask not in shapes:
        ratio = min(high / height, wide / width)
        down, across = filled = max(1, int(height * ratio)), max(1, int(width * ratio))
    else:
        down, across = filled = _free_page(step, height, width, (high, wide))
    high, wide = high or filled[0], wide or filled[1]
    resized = images.resize(np.asarray(picture[0], np.uint8), down, across)
    ordered = resized[:, :, ::-1] if step.color == "BGR" else resized
    mean, std = np.asarray(step.mean, np.float32), np.asarray(step.std, np.float32)
    tensor = np.zeros((1, 3, high, wide), np.float32)
    normalized = (ordered.astype(np.float32) * np.float32(step.scale) - mean) / std
    tensor[0, :, :down, :across] = normalized.transpose(2, 0, 1)
    made: dict[str, Any] = {step.output: tensor}
    if mask in shapes:
        made[mask] = np.zeros(shapes[mask], np.float32)
        made[mask][:, :, : filled[0], : filled[1]] = 1
    if step.scaled:
        made[step.scaled] = np.array([across / width, down / height], np.float32)
    return made


def _free_page(step: Resize, height: int, width: int, most: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of a page for a graph that takes any size.

    Args:
        step: The step.
        height, width: Size of the page.
        most: Height and width that the graph takes at most; 0 for any.
    """
    ratio = max(1.0, step.least_side / min(height, width))
    if max(height, width) * ratio > step.most_side:
        ratio = step.most_side / max(height, width)
    sides = (int(side * ratio) for side in (height, width))
    down, across = (max(1, round(side / step.multiple)) * step.multiple for side in sides)
    if all(most) and (down > most[0] or across > most[1]):
        ratio = min(most[0] / height, most[1] / width)
        sides = (int(side * ratio) for side in (height, width))
        down, across = (max(1, side // step.multiple) * step.multiple for side in sides)
    return down, across


def _find_boxes(step: Boxes, values: Tensor, scaled: Tensor, picture: Tensor) -> dict[str, Any]:
    size = (int(picture.shape[1]), int(picture.shape[2]))
    return {step.output: find_text(step, values, scaled, size)}


def _crop(step: Crop, picture: Tensor, boxes: Tensor) -> dict[str, Any]:
    source = np.asarray(picture[0], np.uint8)
    return {step.output: [images.cut_out(source, box)[None] for box in boxes]}


def _turn(step: Turn, picture: Tensor, shares: Tensor) -> dict[str, Any]:
    row = shares.reshape(-1)
    is_turned = int(row.argmax()) == step.number and float(row[step.number]) > step.least
    return {step.output: picture[:, ::-1, ::-1] if is_turned else picture}


def _read_texts(step: Ctc, lines: Sequence[Tensor]) -> dict[str, Value]:
    texts, scores = [], []
    for line in lines:
        rows = line.reshape(-1, line.shape[-1])
        kinds = np.where(rows.any(axis=-1), rows.argmax(axis=-1), step.blank)  # 0: padding
        is_new = np.append(True, kinds[1:] != kinds[:-1]) & (kinds != step.blank)
        text = "".join(_character(step, int(kind)) for kind in kinds[is_new])
        texts.append([ord(letter) for letter in text])
        best = rows.max(axis=-1)[is_new]
        scores.append(float(best.mean()) if best.size else 0.0)
    made: dict[str, Value] = {step.output: _pad(texts)}
    if step.scores:
        made[step.scores] = np.array(scores, np.float32)
    return made


def _character(step: Ctc, kind: int) -> str:
    place = kind - (kind > step.blank)
    return step.characters[place] if place < len(step.characters) else "\N{REPLACEMENT CHARACTER}"


def _pad(texts: Sequence[Sequence[int]]) -> Tensor:
    """Return texts as rows of one length, with 0 behind their ends."""
    whole = np.zeros((len(texts), max(map(len, texts), default=0)), np.int32)
    for row, text in zip(whole, texts, strict=True):
        row[: len(text)] = text
    return whole


def _keep(step: Keep, *given: Tensor) -> dict[str, Any]:
    *tensors, scores = given
    is_kept = np.asarray(scores, np.float64) >= step.least
    return {name: tensor[is_kept] for name, tensor in zip(step.outputs, tensors, strict=True)}


def _argmax(step: Argmax, values: Tensor) -> dict[str, Any]:
    return {step.output: np.asarray(values.argmax(axis=-1), np.int64)}


_ACTS: Mapping[type, Callable[..., Any]] = {
    Resize: _resize,
    Boxes: _find_boxes,
    Crop: _crop,
    Turn: _turn,
    Keep: _keep,
    Argmax: _argmax,
}
