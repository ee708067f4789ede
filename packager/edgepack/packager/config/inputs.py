"""Inputs of a model: `[inputs]` of an `edgepack.toml`.

Calibration, evaluation and golden inputs all read their files by these declarations, so that all
use the same preprocessing.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, get_args

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.packager.profiles.section import Section, Stated
from edgepack.packager.source.fixed_inputs import FixedInput
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key, unknown_name
from edgepack.tasks.inputs import (
    Color,
    DescribedInput,
    Filter,
    Layout,
    PictureDtype,
    PictureInput,
    Resize,
)
from edgepack.tasks.inputs import TokenInput as DescribedTokens


class ImageInput(Section, frozen=True, kw_only=True, tag_field="kind", tag="image"):
    """`[inputs.NAME] kind = "image"`: the input is filled from an image file.

    A pixel p (0 … 255) of channel c becomes `(p * scale - mean[c]) / std[c]`.

    Attributes:
        layout: Order of the axes.
        color: Order of the channels; `GRAY` for models with a single channel.
        size: Height and width; empty takes the model's own.
        resize: `stretch` ignores the aspect, `letterbox` keeps the aspect and pads with `pad`,
            `crop` keeps the aspect and cuts the middle out, `short_side` makes the shorter side
            `short_side` pixels long and cuts the middle out.
        short_side: See `resize`; with `stretch`, the picture is stretched to this shorter side, and
            the middle is cut out.
        filter: Filter of the resizing.
        pad: Value of the padding, 0 … 255, before scale, mean and std.
        scale, mean, std: See above; mean and std have a single value or a value per channel.
        prepared_as_trained: A person compared this with the training: nothing is doubted.
    """

    layout: Layout = "NCHW"
    color: Color = "RGB"
    size: Annotated[tuple[Stated, ...], msgspec.Meta(min_length=1)] = ()
    resize: Resize = "stretch"
    short_side: Stated = 0
    filter: Filter = "bilinear"
    pad: Annotated[int, msgspec.Meta(ge=0, le=255)] = 114
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    prepared_as_trained: bool = False


class TokenInput(Section, frozen=True, kw_only=True, tag_field="kind", tag="tokens"):
    """`[inputs.NAME] kind = "tokens"`: integers below a vocabulary's size, from array files.

    Attributes:
        vocabulary: Number of tokens; a sample with a larger value is rejected, and random samples
            are drawn below this number.
    """

    vocabulary: Stated


class RawInput(Section, frozen=True, kw_only=True, tag_field="kind", tag="raw"):
    """`[inputs.NAME] kind = "raw"`: arrays are fed unchanged (the default).

    Attributes:
        fed_from: `from` in the file: the output of the inference before that feeds this input, a
            state. "" where none does; absent, names and shapes decide.
        steps: Of a state, inferences of a series: the state begins anew after so many. The samples
            hold whole series. 0 where nothing is stated.
        prepared_as_trained: See `ImageInput`.
    """

    fed_from: str | None = msgspec.field(name="from", default=None)
    steps: Stated = 0
    prepared_as_trained: bool = False


InputDeclaration = ImageInput | TokenInput | RawInput


class WantedInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a sample.

    Attributes:
        specs: The model's inputs.
        declarations: Declarations of the inputs, by name.
        fixed: Inputs that became constants; samples may still hold these inputs, with that value,
            and are read without them.
        unprepared: Reason why pictures are not prepared as the model's folder states; "" without
            one.
    """

    specs: tuple[TensorSpec, ...]
    declarations: Mapping[str, InputDeclaration] = {}
    fixed: tuple[FixedInput, ...] = ()
    unprepared: str = ""

    @property
    def steps(self) -> int:
        """Return the inferences of a series; 0 where nothing is stated."""
        return series_steps(self.declarations)


def series_steps(declarations: Mapping[str, InputDeclaration]) -> int:
    """Return the declared inferences of a series; 0 where nothing is declared.

    Raises:
        BuildError: Two states declare different numbers.
    """
    declared = {
        name: declaration.steps
        for name, declaration in declarations.items()
        if isinstance(declaration, RawInput) and declaration.steps
    }
    if len(set(declared.values())) > 1:
        listed = ", ".join(f"{name!r}: {steps}" for name, steps in declared.items())
        raise BuildError(
            f"states begin anew together, and their steps differ ({listed})",
            found_in="inputs",
            remedy="the same steps for each state, or for one of them alone",
        )
    return next(iter(declared.values()), 0)


def check_declarations(wanted: WantedInputs) -> None:
    """Reject declarations that do not fit the model.

    Args:
        wanted: Inputs with their declarations, without constant inputs.

    Raises:
        BuildError: An unknown input, an image for an input without four axes, a wrong number of
            channels, or tokens for an input of floats.
    """
    by_name = {spec.name: spec for spec in wanted.specs}
    constant = {entry.name for entry in wanted.fixed}
    for name, declaration in wanted.declarations.items():
        if name in constant:
            continue
        where = f"inputs.{toml_key(name)}"
        if name not in by_name:
            raise unknown_name(
                "input", name, by_name, where, lambda near: f"[inputs.{toml_key(near)}]"
            )
        spec = by_name[name]
        if isinstance(declaration, ImageInput):
            _check_image(declaration, spec, where)
        if isinstance(declaration, TokenInput) and not spec.dtype.startswith(("int", "uint")):
            raise BuildError(
                f"input {name!r} takes {spec.dtype}, tokens are integers",
                found_in=where,
                remedy='kind = "raw"',
            )


def image_size(declaration: ImageInput, spec: TensorSpec) -> tuple[int, int]:
    """Return height and width that an image is brought to.

    Raises:
        BuildError: Neither the declaration nor the model says.
    """
    axes = (2, 3) if declaration.layout == "NCHW" else (1, 2)
    if declaration.size:
        return declaration.size[0], declaration.size[1]
    height, width = (spec.shape[axis] for axis in axes)
    if isinstance(height, str) or isinstance(width, str):
        raise BuildError(
            f"the size of image input {spec.name!r} is open in the model ({spec})",
            found_in=f"inputs.{toml_key(spec.name)}",
            remedy="declare size = [height, width], or fix it with --shape",
        )
    return height, width


def picture_input(
    declaration: ImageInput, spec: TensorSpec, *, is_checked: bool = True
) -> PictureInput:
    """Return the description of an image input, for build and device.

    Args:
        declaration: A checked declaration.
        spec: The input.
        is_checked: See `PictureInput`.

    Raises:
        BuildError: Neither declaration nor model gives the size, or a number is out of range.
    """
    height, width = image_size(declaration, spec)
    batch = spec.shape[0]
    try:
        return convert_value(
            {
                "kind": "image",
                "name": spec.name,
                "layout": declaration.layout,
                "color": declaration.color,
                "height": height,
                "width": width,
                "resize": declaration.resize,
                "short_side": declaration.short_side,
                "filter": declaration.filter,
                "pad": declaration.pad,
                "scale": declaration.scale,
                "mean": declaration.mean,
                "std": declaration.std,
                "dtype": spec.dtype if spec.dtype in get_args(PictureDtype) else "float32",
                "batch": batch if isinstance(batch, int) else 0,
                "is_checked": is_checked,
            },
            PictureInput,
        )
    except msgspec.ValidationError as error:
        raise BuildError(
            f"the declaration of image input {spec.name!r} is wrong: {error}",
            found_in=f"inputs.{toml_key(spec.name)}",
            remedy="see [inputs] in the reference of edgepack.toml",
        ) from error


def described_inputs(wanted: WantedInputs, *, from_pictures: bool) -> tuple[DescribedInput, ...]:
    """Return the inputs whose preparation is declared, for the bundle.

    Args:
        wanted: Inputs of a sample with their declarations, checked.
        from_pictures: Whether the samples were prepared so from pictures.
    """
    found: list[DescribedInput] = []
    for spec in wanted.specs:
        declaration = wanted.declarations.get(spec.name)
        if isinstance(declaration, ImageInput) and _has_size(declaration, spec):
            found.append(picture_input(declaration, spec, is_checked=from_pictures))
        elif isinstance(declaration, TokenInput):
            found.append(DescribedTokens(name=spec.name, vocabulary=declaration.vocabulary))
    return tuple(found)


def _has_size(declaration: ImageInput, spec: TensorSpec) -> bool:
    """Return True if a declaration or the model gives height and width; arrays need neither."""
    axes = (2, 3) if declaration.layout == "NCHW" else (1, 2)
    return bool(declaration.size) or all(isinstance(spec.shape[axis], int) for axis in axes)


def _check_image(declaration: ImageInput, spec: TensorSpec, where: str) -> None:
    refusal = partial(BuildError, found_in=where)
    if len(spec.shape) != 4:
        raise refusal(
            f"an image needs an input with four axes, {spec} has {len(spec.shape)}",
            remedy='kind = "raw"',
        )
    if declaration.size and len(declaration.size) != 2:
        raise refusal("size is height and width", remedy="size = [320, 320]")
    channels = 1 if declaration.color == "GRAY" else 3
    axis = 1 if declaration.layout == "NCHW" else 3
    if isinstance(spec.shape[axis], int) and spec.shape[axis] != channels:
        raise refusal(
            f"{declaration.color} has {channels} channels, axis {axis} of {spec} has "
            f"{spec.shape[axis]}",
            remedy="check layout and color",
        )
    axes = (2, 3) if declaration.layout == "NCHW" else (1, 2)
    fits = zip((spec.shape[axis] for axis in axes), declaration.size, strict=False)
    if any(isinstance(fixed, int) and fixed != size for fixed, size in fits):
        fixed = ", ".join(str(spec.shape[axis]) for axis in axes)
        raise refusal(
            f"size = [{', '.join(map(str, declaration.size))}] is not what {spec} takes",
            remedy=f"size = [{fixed}]",
        )
    for key, values in (("mean", declaration.mean), ("std", declaration.std)):
        if len(values) not in (1, channels):
            raise refusal(
                f"{key} has {len(values)} values for {channels} channels",
                remedy=f"give one value, or {channels}",
            )
    needs_side = declaration.resize == "short_side"
    if declaration.resize != "stretch" and needs_side != bool(declaration.short_side):
        raise refusal(
            f"resize = {declaration.resize!r} and short_side = {declaration.short_side}",
            remedy='resize = "short_side" with short_side = 256, or neither',
        )
    if 0 in declaration.std:
        raise refusal("std has a 0: it is divided by", remedy="1.0 where nothing is divided")
