"""Checks of a sample against the model: names, shapes, types, finite values."""

import difflib
from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, TokenInput, WantedInputs
from edgepack.packager.source.fixed_inputs import FixedInput
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Tensor


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in the model's types and ranks.

    Attributes:
        feeds: The inputs.
        conversions: Changes, in words.
    """

    feeds: Feeds
    conversions: tuple[str, ...]


def fit_sample(arrays: Mapping[str, Tensor], wanted: WantedInputs, label: str) -> Fitted:
    """Convert a sample to the model's types and ranks, if lossless.

    Args:
        arrays: Arrays of the file.
        wanted: Inputs of a sample.
        label: File of the sample, for messages.

    Returns:
        The sample; integers are widened, float64 is rounded to float32, a missing batch axis of 1
        is added.

    Raises:
        BuildError: A name, shape, type or value does not fit.
    """
    arrays = _without_fixed(arrays, wanted.fixed, label)
    _check_names(arrays, wanted.specs, label)
    feeds, conversions = {}, []
    for spec in wanted.specs:
        where = f"{label}, input {spec.name!r}"
        array = _with_batch_axis(arrays[spec.name], spec, where)
        if array.dtype.name != spec.dtype:
            conversions.append(f"{spec.name}: {array.dtype.name} -> {spec.dtype}")
            array = _convert(array, spec, where)
        _check_values(array, spec, wanted.declarations.get(spec.name), where)
        # ONNX Runtime takes bytes of the other order as they are. A scalar stays one.
        feeds[spec.name] = np.require(array, np.dtype(spec.dtype), requirements="C")
    return Fitted(feeds=feeds, conversions=tuple(conversions))


def _without_fixed(
    arrays: Mapping[str, Tensor], fixed: tuple[FixedInput, ...], label: str
) -> dict[str, Tensor]:
    """Return a sample without constant inputs, if the sample holds their fixed values."""
    values = {entry.name: entry for entry in fixed}
    for name, entry in values.items():
        array = np.asarray(arrays.get(name, entry.value))
        if array.size != entry.value.size or (array.ravel() != entry.value.ravel()).any():
            raise BuildError(
                f"input {name!r} is fixed ({entry}), and a sample holds {_few(array)}",
                found_in=f"{label}, input {name!r}",
                remedy=f"samples of that value alone, or a model for each: --value {name}=…",
            )
    return {name: array for name, array in arrays.items() if name not in values}


def _few(array: Tensor) -> str:
    shown = ", ".join(map(str, array.ravel()[:4].tolist()))
    return shown if array.size <= 4 else f"{shown} … ({array.size:,} values)"


def _check_names(arrays: Mapping[str, Tensor], inputs: tuple[TensorSpec, ...], label: str) -> None:
    expected = [spec.name for spec in inputs]
    missing = [name for name in expected if name not in arrays]
    unexpected = [name for name in arrays if name not in expected]
    if not missing and not unexpected:
        return
    parts = []
    if missing:
        parts.append(f"missing: {', '.join(missing)}")
    if unexpected:
        parts.append(f"not an input: {', '.join(unexpected)}")
    renames = [
        f"{name} -> {near[0]}"
        for name in unexpected
        if (near := _closest(name, missing, only=len(unexpected) == len(missing) == 1))
    ]
    absent = [spec for spec in inputs if spec.name in missing]
    settings = [f"--value {spec.name}={'…' if not spec.shape else 0}" for spec in absent]
    is_setting = not unexpected and all(
        not spec.shape or np.dtype(spec.dtype).kind in "iu" for spec in absent
    )
    raise BuildError(
        f"a sample's names are not the model's inputs ({'; '.join(parts)})",
        found_in=label,
        remedy=f"rename {', '.join(renames)}"
        if renames
        else f"save one array for each of {', '.join(expected)}, and no other"
        + (f"; or, where a device never changes it, {' '.join(settings)}" if is_setting else ""),
    )


def _closest(name: str, candidates: list[str], *, only: bool) -> list[str]:
    return difflib.get_close_matches(name, candidates, n=1, cutoff=0.0 if only else 0.5)


def _with_batch_axis(array: Tensor, spec: TensorSpec, where: str) -> Tensor:
    if array.dtype == object:
        raise BuildError(
            "a sample holds Python objects, not numbers",
            found_in=where,
            remedy=f"save {spec.dtype} arrays",
        )
    has_batch = bool(spec.shape) and (spec.shape[0] == 1 or isinstance(spec.shape[0], str))
    if has_batch and array.ndim == len(spec.shape) - 1:
        array = array[None]
    if spec.takes(array.shape):
        return array
    found = ",".join(map(str, array.shape))
    without = f", or without the first axis [{_shape(spec, 1)}]" if has_batch else ""
    raise BuildError(
        f"a sample has shape [{found}], the model takes [{_shape(spec, 0)}]{without}",
        found_in=where,
        remedy=_shape_remedy(array.shape, spec),
    )


def _shape(spec: TensorSpec, start: int) -> str:
    return ",".join(str(size) for size in spec.shape[start:])


def _shape_remedy(found: tuple[int, ...], spec: TensorSpec) -> str:
    if len(found) == len(spec.shape) == 4:
        for order, layouts in (
            ((0, 3, 1, 2), "NHWC and not NCHW"),
            ((0, 2, 3, 1), "NCHW, not NHWC"),
        ):
            if spec.takes([found[axis] for axis in order]):
                return f"it looks like {layouts}: save array.transpose{order}"
    if len(found) == len(spec.shape) and found[1:] == spec.shape[1:]:
        if isinstance(spec.shape[0], int) and spec.shape[0] > 1:
            return (
                f"the model takes {spec.shape[0]} at once: np.concatenate so many into each file, "
                "or export it with an open batch axis"
            )
        return (
            f"the first axis is {found[0]}: one file of a folder is one sample; "
            "give a stack as one .npz file"
        )
    return "save the samples in the model's shape (where --shape fixed it, theirs may stand there)"


def _convert(array: Tensor, spec: TensorSpec, where: str) -> Tensor:
    """Change the type where no information is lost that the model could have used."""
    refusal = partial(BuildError, found_in=where)
    want = np.dtype(spec.dtype)
    if array.dtype.kind == "f" and want.kind == "f":
        with np.errstate(over="ignore"):
            converted = array.astype(want)
        lost = np.isfinite(array) & ~np.isfinite(converted)
        if lost.any():
            raise refusal(
                f"a sample's value {array[lost][0]:.6g} does not fit {spec.dtype} "
                f"(at most {np.finfo(want).max:.6g})",
                remedy=f"save {spec.dtype}",
            )
        return converted
    if array.dtype.kind in "iu" and want.kind in "iu":
        limits = np.iinfo(want)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise refusal(
                f"a sample's values {int(array.min())} … {int(array.max())} do not fit "
                f"{spec.dtype} ({limits.min} … {limits.max})",
                remedy=f"save {spec.dtype}",
            )
        return array.astype(want)
    raise refusal(
        f"a sample has type {array.dtype.name}, the model takes {spec.dtype}",
        remedy="save floats that are preprocessed as in training (whole numbers are often pixels "
        "that still lack scale and mean)"
        if want.kind == "f"
        else f"save {spec.dtype}: changing {array.dtype.name} to it would lose values",
    )


def _check_values(
    array: Tensor, spec: TensorSpec, declaration: InputDeclaration | None, where: str
) -> None:
    refusal = partial(BuildError, found_in=where)
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            nan_count = int(np.isnan(array).sum())
            what = "NaN" if nan_count else "infinite"
            count = nan_count or int(array.size - finite.sum())
            raise refusal(
                f"{count:,} of {array.size:,} values of a sample are {what}",
                remedy="remove the file, or repair its preprocessing",
            )
    if spec.lookup is not None:
        rows, numbers = spec.lookup.rows, array.astype(np.int64)
        beyond = (numbers < -rows) | (numbers >= rows)
        if beyond.any():
            place = ",".join(map(str, np.argwhere(beyond)[0]))
            raise refusal(
                f"a sample holds {array[beyond][0]} at [{place}], which {spec.lookup.node} looks "
                f"up in a table of {rows:,} rows",
                remedy="make the samples with the tokenizer that the model was trained with",
            )
    if isinstance(declaration, TokenInput) and array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= declaration.vocabulary:
            raise refusal(
                f"a sample has token {high if high >= declaration.vocabulary else low}, the "
                f"vocabulary ends at {declaration.vocabulary - 1}",
                remedy="tokenize with the model's own tokenizer, or correct `vocabulary`",
            )
