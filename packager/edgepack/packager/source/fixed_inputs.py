"""Inputs with sizes or values that the caller fixes.

Open dimensions get the caller's sizes. Inputs with a value become constants of the model: exports
often have inputs that a device never changes, such as a sampling rate. An input forces dependent
control flow to stay; a constant folds the branch away.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import unknown_name
from edgepack.tasks.arrays import Tensor

Numbers = tuple[float | int | bool, ...]
"""One number for the whole input, or one for each of its elements."""


UNNAMED = "?"
"""Stands for a dimension that is open and has no name of its own."""

_NOT_NAMES = frozenset({"", "?", "-1", "None", "unk", "unknown", "dynamic"})
"""What exporters write when a dimension has no name; two such are not the same dimension."""


class FixedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that became a constant.

    Attributes:
        name: Name in the file's graph.
        position: Its place among the inputs that the file's model takes.
        value: Fixed value, in the input's type and shape.
    """

    name: str
    position: int
    value: Tensor

    def __str__(self) -> str:
        values = self.value.ravel()
        if values.size > 1 and bool((values == values[0]).all()):
            values = values[:1]
        return f"{self.name}={','.join(map(str, values.tolist()))}"


def fix_values(
    model: onnx.ModelProto, inputs: Iterable[onnx.ValueInfoProto], values: Mapping[str, Numbers]
) -> tuple[FixedInput, ...]:
    """Turn inputs into constants of the same name.

    Args:
        model: Changed in place; its shapes are fixed already as far as possible.
        inputs: The inputs that a caller feeds, in order.
        values: Values by input name.

    Returns:
        The fixed inputs, in the order of the inputs.

    Raises:
        BuildError: An unknown input, an open shape, a wrong number of values, values that the
            input's type does not hold, or no input is left.
    """
    by_name = {value.name: value for value in inputs}
    for name in values:
        if name not in by_name:
            raise unknown_name(
                "input", name, by_name, f"--value {name}=…", lambda near: f"--value {near}=…"
            )
    fixed = tuple(
        FixedInput(name=name, position=position, value=_as_tensor(by_name[name], values[name]))
        for position, name in enumerate(by_name)
        if name in values
    )
    if fixed and len(fixed) == len(by_name):
        raise BuildError(
            "every input is fixed: the outputs would never change",
            found_in=" ".join(f"--value {entry}" for entry in fixed),
            remedy="leave open what a device feeds",
        )
    for entry in fixed:
        model.graph.input.remove(by_name[entry.name])
        model.graph.initializer.append(numpy_helper.from_array(entry.value, entry.name))
    return fixed


def parse_value(text: str) -> tuple[str, Numbers]:
    """Read `INPUT=16000`, or `INPUT=0.5,0.25` with a number for each element.

    Raises:
        BuildError: The text names no input, or has no numbers.
    """
    name, _, words = text.rpartition("=")
    try:
        numbers = tuple(_number(word.strip()) for word in words.split(","))
    except ValueError as error:
        problem = f"'{words}' is not a number" if name and words else f"'{text}' has no value"
        raise BuildError(problem, found_in="--value", remedy="--value sr=16000") from error
    if not name:
        raise BuildError(f"'{text}' names no input", found_in="--value", remedy="--value sr=16000")
    return name, numbers


def _number(word: str) -> float | int | bool:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        return int(word)
    except ValueError:
        return float(word)


def describe_fixed(fixed: Iterable[FixedInput]) -> tuple[str, ...]:
    """Return notes on the inputs that applications must not feed."""
    return tuple(
        f"Input '{entry.name}' is fixed ({entry}): the bundle's model has no such input, and "
        "applications no longer feed it."
        for entry in fixed
    )


def _as_tensor(value: onnx.ValueInfoProto, numbers: Numbers) -> Tensor:
    tensor = value.type.tensor_type
    where = f"--value {value.name}={','.join(map(str, numbers))}"
    refusal = partial(BuildError, found_in=where)
    sizes = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in tensor.shape.dim]
    if not all(sizes):
        raise refusal(
            f"the shape of input {value.name!r} is open, so it cannot become a constant",
            remedy=f"fix it too: --shape {value.name}="
            f"{','.join(str(size or ('…' if axis else 1)) for axis, size in enumerate(sizes))}, "
            "with the sizes of the other inputs",
        )
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    given = np.array(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        held = given.astype(dtype)
    is_held = np.array_equal(held, given) if dtype.kind in "biu" else np.isfinite(held).all()
    if not is_held:
        raise refusal(
            f"input {value.name!r} takes {dtype.name}, which does not hold these values",
            remedy=f"give {dtype.name} values",
        )
    count = int(np.prod(sizes, dtype=np.int64))
    if len(numbers) not in (1, count):
        raise refusal(
            f"input {value.name!r} has {count} elements, and {len(numbers)} values were given",
            remedy=f"give one value, or {count}",
        )
    return np.broadcast_to(held, (count,)).reshape(sizes).copy()


def read_shape(value: onnx.ValueInfoProto) -> tuple[str | int, ...]:
    """Return the shape of a graph input or output; `?` where a dimension is open and unnamed."""
    return tuple(_dimension(dimension) for dimension in value.type.tensor_type.shape.dim)


def fix_shapes(
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
    shape = read_shape(value)
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
