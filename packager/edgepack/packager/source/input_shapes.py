"""Input shapes: parsing, and fixing of open dimensions with a caller's sizes."""

from collections.abc import Iterable, Mapping
from functools import partial

import onnx

from edgepack.errors import BuildError
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import unknown_name

UNNAMED = "?"
"""Stands for a dimension that is open and has no name of its own."""

_NOT_NAMES = frozenset({"", "?", "-1", "None", "unk", "unknown", "dynamic"})
"""What exporters write when a dimension has no name; two such are not the same dimension."""


def read(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    """Return the shape of a graph input or output; `?` where a dimension is open and unnamed."""
    return tuple(_dimension(dimension) for dimension in value.type.tensor_type.shape.dim)


def fix(
    model: onnx.ModelProto,
    inputs: Iterable[onnx.ValueInfoProto],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Write the given sizes into the model's inputs and wherever their symbols appear.

    Args:
        model: Changed in place.
        inputs: The inputs that a caller feeds.
        shapes: Shapes by input name, a size per axis, each > 0.

    Raises:
        BuildError: An unknown input, a wrong rank, a size against a fixed dimension, or a symbol
            with two sizes.
    """
    by_name = {value.name: value for value in inputs}
    symbols: dict[str, tuple[int, str]] = {}
    for name, sizes in shapes.items():
        if name not in by_name:
            raise unknown_name(
                "input", name, by_name, f"--shape {name}=…", lambda near: f"--shape {near}=…"
            )
        _fix_input(by_name[name], sizes, symbols)
    if symbols:
        values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
        for value in values:
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_param in symbols:
                    dimension.dim_value = symbols[dimension.dim_param][0]


def describe_open_dimensions(spec: TensorSpec) -> str:
    """Return open dimensions in words: `dimensions 0 (batch) and 2 of input 'images'
    [batch,3,?,320]`.
    """
    open_ones = [
        str(axis) if size == UNNAMED else f"{axis} ({size})"
        for axis, size in enumerate(spec.shape)
        if not isinstance(size, int)
    ]
    shape = ",".join(str(size) for size in spec.shape)
    noun = "dimension" if len(open_ones) == 1 else "dimensions"
    return f"{noun} {' and '.join(open_ones)} of input {spec.name!r} [{shape}]"


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> str | int:
    if dimension.HasField("dim_value") and dimension.dim_value > 0:
        return int(dimension.dim_value)
    if dimension.dim_param in _NOT_NAMES:
        return UNNAMED
    return str(dimension.dim_param)


def _fix_input(
    value: onnx.ValueInfoProto, sizes: tuple[int, ...], symbols: dict[str, tuple[int, str]]
) -> None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in sizes)
    shape = read(value)
    where = f"--shape {value.name}={','.join(str(size) for size in sizes)}"
    refusal = partial(BuildError, found_in=where)
    declared = f"[{','.join(str(size) for size in shape)}]"
    if len(sizes) != len(shape):
        raise refusal(
            f"input {value.name!r} has {len(shape)} dimensions {declared}, the shape given has "
            f"{len(sizes)}",
            remedy=f"give {len(shape)} sizes",
        )
    for axis, (size, old) in enumerate(zip(sizes, shape, strict=True)):
        if size < 1:
            raise refusal(
                f"size {size} of dimension {axis} is not positive",
                remedy=f"give a size of at least 1; the model declares {declared}",
            )
        if isinstance(old, int):
            if old != size:
                raise refusal(
                    f"dimension {axis} of input {value.name!r} is fixed to {old} in the model "
                    f"{declared} and cannot become {size}",
                    remedy=f"give {old} there, or export the model with that dimension open",
                )
            continue
        if old != UNNAMED:
            bound, by = symbols.setdefault(old, (size, value.name))
            if bound != size:
                raise refusal(
                    f"dimension {old!r} cannot be both {bound} (input {by!r}) and {size} "
                    f"(input {value.name!r})",
                    remedy=f"give both the same size, they share the name {old!r} in the model",
                )
        value.type.tensor_type.shape.dim[axis].dim_value = size
