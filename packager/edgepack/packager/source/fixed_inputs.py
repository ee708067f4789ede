"""Inputs with a fixed value from the caller, which become constants of the model.

Exports often have inputs that a device never changes, such as a sampling rate. An input forces
dependent control flow to stay; a constant folds the branch away.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.wording import unknown_name
from edgepack.tasks.arrays import Tensor

Numbers = tuple[float | int | bool, ...]
"""One number for the whole input, or one for each of its elements."""


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
