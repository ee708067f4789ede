"""Sizes to try for a model's open dimensions: an example that the model really takes.

1. Equal names have equal sizes; `past_sequence_length + 1` and `total_sequence_length` follow from
   other names.
2. Sizes of samples are the sizes of devices. Without samples, usual sizes are tried.
3. Each is run: a table of positions may end at 77, and a Reshape may want 14 x 14 patches.
"""

import itertools
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, weights_size_bytes
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.source.fixed_inputs import UNNAMED, describe_open_dimensions, fix_shapes
from edgepack.packager.source.model import SourceModel, required_inputs
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Outputs

Shapes = Mapping[str, tuple[int, ...]]
"""By input, one size an axis."""

_PIXELS = (320, 224, 640, 256, 384, 512, 128, 64, 32, 48)
_OTHERS = (128, 64, 32, 16, 256, 77, 512, 8, 4, 3, 2, 1)
"""Usual sizes, of images and of all else (tokens, frames, states), in the order to try."""

_MOST_TRIED = 40
_MOST_WRITTEN_BYTES = 4_000_000_000
"""A model is written for each; of a large one fewer sizes are tried, but four."""

_DOES_NOT_RUN: tuple[type[Exception], ...] = (BuildError, ValueError, *RUNTIME_ERRORS)

_SUM = re.compile(r"[\w.]+(?: *[+-] *[\w.]+)+")
_TERM = re.compile(r"([+-]?) *([\w.]+)")


def refuse_open_shapes(
    source: SourceModel, profile: str, known: Shapes | None = None, advice: str = ""
) -> None:
    """Reject a model with open dimensions for a profile that needs every dimension fixed.

    Args:
        source: The model.
        profile: Its name, for the message.
        known: The shapes of a sample, by input, if available.
        advice: Remedy, if known; by default sizes are searched.

    Raises:
        BuildError: An input has an open dimension; the message names each, and the option to fix
            the size.
    """
    dynamic = [spec for spec in source.inputs if not spec.is_static]
    if not dynamic:
        return
    raise BuildError(
        f"profile {profile!r} needs every dimension fixed, and {source.path.name} leaves open "
        f"{'; '.join(map(describe_open_dimensions, dynamic))}",
        found_in=str(source.path),
        remedy=advice or suggest_shapes(source, known),
    )


def suggest_shapes(source: SourceModel, known: Shapes | None = None) -> str:
    """Return options that fix every open dimension, and where their sizes come from.

    Args:
        source: The model.
        known: The shapes of a sample, by input, if available.
    """
    inputs = [spec for spec in source.inputs if not spec.is_static]
    is_full = all(0 not in shape for shape in (known or {}).values())  # an empty cache is a start
    if known and is_full and all(spec.takes(known.get(spec.name, ())) for spec in inputs):
        return f"{_options(inputs, known)}  (the sizes of the first sample)"
    shapes = _find_shapes(source)
    if shapes is None:
        return (
            f"{' '.join(map(_unknown_option, inputs))} with the sizes that the model was made for "
            "(it does not run with any of the usual ones)"
        )
    return (
        f"{_options(inputs, shapes)}  (the sizes are an example: take those that your devices feed)"
    )


def example_shapes(source: SourceModel) -> Shapes:
    """Return the sizes for a template, by input: sizes that run, or at least usual sizes; none if
    all are fixed.
    """
    if all(spec.is_static for spec in source.inputs):
        return {}
    return _find_shapes(source) or next(_usual_shapes(source.inputs))


def describe_options(inputs: Sequence[TensorSpec], shapes: Shapes) -> str:
    """Return the options that fix every open input."""
    return _options([spec for spec in inputs if not spec.is_static], shapes)


def run_with(source: SourceModel, feeds: Feeds) -> Outputs | None:
    """Return the outputs of a model with inputs fixed to these sizes; None on failure."""
    with tempfile.TemporaryDirectory(prefix="edgepack-shapes-") as folder:
        return _run(source, feeds, Path(folder) / "model.onnx")


def _find_shapes(source: SourceModel) -> Shapes | None:
    """Return the first usual sizes with which the model runs; None without any."""
    size_bytes = max(1, weights_size_bytes(source.model))
    count = min(_MOST_TRIED, max(4, _MOST_WRITTEN_BYTES // size_bytes))
    with tempfile.TemporaryDirectory(prefix="edgepack-shapes-") as folder:
        for shapes in itertools.islice(_usual_shapes(source.inputs), count):
            if _runs(source, shapes, Path(folder) / "model.onnx"):
                return shapes
    return None


def _usual_shapes(inputs: Sequence[TensorSpec]) -> Iterator[Shapes]:
    """Yield sizes to try, the likeliest first, without duplicates."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    pairs = itertools.product(enumerate(_PIXELS), enumerate(_OTHERS))
    for (_, pixels), (_, others) in sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0]):
        sizes = _sizes(inputs, pixels, others)
        shapes = {spec.name: _shape(spec, sizes) for spec in inputs}
        key = tuple(shapes.values())
        if key not in seen and all(size > 0 for shape in key for size in shape):
            seen.add(key)
            yield shapes


def _sizes(inputs: Sequence[TensorSpec], pixels: int, others: int) -> dict[str, int]:
    """Return sizes by name of a dimension; dependent dimensions come last."""
    sizes: dict[str, int] = {}
    for spec in sorted(inputs, key=_is_image):  # of a name in both, what is not an image decides
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str):
                usual = pixels if _is_image(spec) else others
                sizes.setdefault(_key(spec, axis), usual if axis else 1)
    derived = {name: value for name in sizes if (value := _derive(name, sizes)) is not None}
    return sizes | derived


def _derive(name: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a dimension with a name that is a sum of others or of numbers; None for
    other names.
    """
    past = "past" + name.removeprefix("total")
    if (
        name.startswith("total_")
        and past in sizes
        and (own := name.removeprefix("total_")) in sizes
    ):
        return sizes[past] + sizes[own]
    if not _SUM.fullmatch(name):
        return None
    total = 0
    for sign, term in _TERM.findall(name):
        value = int(term) if term.isdecimal() else sizes.get(term)
        if value is None:
            return None
        total += -value if sign == "-" else value
    return total


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        size if isinstance(size, int) else sizes[_key(spec, axis)]
        for axis, size in enumerate(spec.shape)
    )


def _key(spec: TensorSpec, axis: int) -> str:
    """Return the key of a dimension: two unnamed dimensions differ."""
    size = spec.shape[axis]
    return f"{axis} of {spec.name}" if size == UNNAMED else str(size)


def _is_image(spec: TensorSpec) -> bool:
    return len(spec.shape) == 4 and (spec.shape[1] in (1, 3) or spec.shape[3] in (1, 3))


def _options(inputs: Sequence[TensorSpec], shapes: Shapes) -> str:
    return " ".join(
        f"--shape {shlex.quote(spec.name)}={','.join(map(str, shapes[spec.name]))}"
        for spec in inputs
    )


def _unknown_option(spec: TensorSpec) -> str:
    sizes = (str(size).upper() if size != UNNAMED else "SIZE" for size in spec.shape)
    return f"--shape {shlex.quote(spec.name)}={','.join(sizes)}"


def _runs(source: SourceModel, shapes: Shapes, path: Path) -> bool:
    """Return True if the model runs with these sizes, on ones, which any table accepts."""
    feeds = {spec.name: np.ones(shapes[spec.name], np.dtype(spec.dtype)) for spec in source.inputs}
    return _run(source, feeds, path) is not None


def _run(source: SourceModel, feeds: Feeds, path: Path) -> Outputs | None:
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    shapes = {name: values.shape for name, values in feeds.items()}
    try:
        fix_shapes(model, required_inputs(model), shapes)
        return ModelRunner(model, path, optimize=False).run(feeds)
    except _DOES_NOT_RUN:
        return None
