"""`edgepack.toml`: what a model's inputs are and how to build it, declared once.

Calibration, evaluation and golden inputs all read their files by these declarations, so that
a preprocessing cannot be one thing here and another there.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.source.fixed_inputs import FixedInput, Numbers
from edgepack.packager.source.model import TensorSpec

CONFIG_FILE = "edgepack.toml"
_RGB_CHANNELS = 3


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have: unknown keys are errors."""


class ImageInput(_Section, frozen=True, kw_only=True, tag_field="kind", tag="image"):
    """`[inputs.NAME] kind = "image"`: the input is filled from an image file.

    A pixel p (0 … 255) of channel c becomes `(p * scale - mean[c]) / std[c]`.

    Attributes:
        layout: Order of the axes.
        color: Order of the channels; `GRAY` for models with one.
        size: Height and width; empty takes the model's own.
        resize: `stretch` ignores the aspect, `letterbox` keeps it and pads with `pad`, `crop`
            keeps it and cuts the middle out.
        pad: Value of the padding, 0 … 255, before scale, mean and std.
        scale, mean, std: See above; mean and std have one value or one a channel.
    """

    layout: Literal["NCHW", "NHWC"] = "NCHW"
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    size: tuple[int, ...] = ()
    resize: Literal["stretch", "letterbox", "crop"] = "stretch"
    pad: int = 114
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


class TokenInput(_Section, frozen=True, kw_only=True, tag_field="kind", tag="tokens"):
    """`[inputs.NAME] kind = "tokens"`: integers below a vocabulary's size, from array files.

    Attributes:
        vocabulary: Number of tokens; a sample with another value is refused, and random samples
            are drawn below it.
    """

    vocabulary: int


class RawInput(_Section, frozen=True, kw_only=True, tag_field="kind", tag="raw"):
    """`[inputs.NAME] kind = "raw"`: arrays are fed as the files hold them (the default).

    Attributes:
        fed_from: `from` in the file: the output of the inference before that feeds this input, a
            state. "" where none does; absent, names and shapes decide.
    """

    fed_from: str | None = msgspec.field(name="from", default=None)


InputDeclaration = ImageInput | TokenInput | RawInput


class ModelSection(_Section, frozen=True, kw_only=True):
    """`[model]`: name, version for people, and the release counter (from the version if None)."""

    name: str = ""
    version: str = ""
    release: int | None = None


class SamplesSection(_Section, frozen=True, kw_only=True):
    """`[calibration]`: a path relative to the file, or `random:N`."""

    path: str = ""


class EvaluationSection(_Section, frozen=True, kw_only=True):
    """`[evaluation]`: held-out samples, and a file with the class of each, if there is one."""

    path: str = ""
    labels: str = ""


class BuildSection(_Section, frozen=True, kw_only=True):
    """`[build]`: what the options of `edgepack build` default to."""

    profiles: tuple[str, ...] = ()
    shape: dict[str, tuple[int, ...]] = {}
    value: dict[str, bool | int | float | Numbers] = {}
    metric: str = ""
    hooks: str = ""
    budget: str = ""

    @property
    def values(self) -> dict[str, Numbers]:
        """Inputs that become constants, a single number as one of one."""
        return {
            name: value if isinstance(value, tuple) else (value,)
            for name, value in self.value.items()
        }


class BuildConfig(_Section, frozen=True, kw_only=True):
    """A whole `edgepack.toml`.

    Attributes:
        search: `[search]`: keys of the profiles, each with a list of values to try.
    """

    model: ModelSection = ModelSection()
    inputs: dict[str, InputDeclaration] = {}
    calibration: SamplesSection = SamplesSection()
    evaluation: EvaluationSection = EvaluationSection()
    build: BuildSection = BuildSection()
    search: dict[str, Any] = {}


def read_config(path: Path) -> BuildConfig:
    """Reads and checks an `edgepack.toml`; paths in it become relative to the current folder.

    Args:
        path: The file.

    Raises:
        BuildError: It is missing, no TOML, or has an unknown or ill-typed key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BuildError(
            f"cannot read {path}: {error.strerror}", remedy="edgepack init MODEL writes one"
        ) from error
    try:
        config = msgspec.toml.decode(content, type=BuildConfig)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{path.name} is wrong: {error}",
            found_in=str(path),
            remedy="edgepack init MODEL -o example.toml shows every key",
        ) from error
    return msgspec.structs.replace(
        config,
        calibration=SamplesSection(path=_anchor(config.calibration.path, path.parent)),
        evaluation=EvaluationSection(
            path=_anchor(config.evaluation.path, path.parent),
            labels=_anchor(config.evaluation.labels, path.parent),
        ),
        build=msgspec.structs.replace(
            config.build,
            profiles=tuple(
                str(path.parent / name) if name.endswith(".toml") else name
                for name in config.build.profiles
            ),
            hooks=str(path.parent / config.build.hooks) if config.build.hooks else "",
        ),
    )


def check_declarations(
    declarations: Mapping[str, InputDeclaration],
    inputs: tuple[TensorSpec, ...],
    path: str,
    fixed: tuple[FixedInput, ...] = (),
) -> None:
    """Refuses declarations that do not fit the model.

    Args:
        declarations: By input name.
        inputs: The model's inputs.
        path: The file they were read from, for messages.
        fixed: Inputs that became constants; their declarations count no more.

    Raises:
        BuildError: An unknown input, an image for an input without four axes, a wrong number of
            channels, or tokens for an input of floats.
    """
    by_name = {spec.name: spec for spec in inputs}
    constant = {entry.name for entry in fixed}
    for name, declaration in declarations.items():
        if name in constant:
            continue
        where = f"{path}, inputs.{name}"
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.4)
            raise BuildError(
                f"the model has no input {name!r}; it has {', '.join(by_name)}",
                found_in=where,
                remedy=f"[inputs.{near[0] if near else next(iter(by_name))}]",
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


def image_channels(declaration: ImageInput) -> int:
    """Number of channels that an image declared so has."""
    return 1 if declaration.color == "GRAY" else _RGB_CHANNELS


def image_size(declaration: ImageInput, spec: TensorSpec) -> tuple[int, int]:
    """Height and width that an image is brought to.

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
            found_in=f"inputs.{spec.name}",
            remedy="declare size = [height, width], or fix it with --shape",
        )
    return height, width


def template(model_file: str, inputs: tuple[TensorSpec, ...]) -> str:
    """A commented `edgepack.toml` for a model, with a likely declaration for each input.

    Args:
        model_file: Name of the model's file.
        inputs: The model's inputs.
    """
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(model_file).stem)
    sections = [_TEMPLATE_HEAD.format(file=model_file, name=stem)]
    sections += [_input_template(spec) for spec in inputs]
    open_inputs = [spec for spec in inputs if not spec.is_static]
    shape = "".join(
        f"#   {_quoted(spec.name)} = [{', '.join(str(_size(size)) for size in spec.shape)}]\n"
        for spec in open_inputs
    )
    sections.append(_TEMPLATE_TAIL + (f"# [build.shape]\n{shape}" if shape else ""))
    scalars = [f"#   {_quoted(spec.name)} = 1\n" for spec in inputs if not spec.shape]
    if scalars:
        sections.append("".join([_VALUE_TEMPLATE, *scalars]))
    return "\n".join(sections)


_TEMPLATE_HEAD = """\
# How to build {file} with edgepack. Options on the command line win over this file.

[model]
name = "{name}"
version = "1.0.0"
# release = 1000000     # counter that only goes up; by default from the version: 1.2.0 -> 1002000
"""

_TEMPLATE_TAIL = """\
[calibration]
# A folder of .npz or .npy files (one sample each), one .npz with a leading sample axis,
# ONNX test data (test_data_set_0/input_0.pb …), or a folder of images. 100 to 300 are usual.
path = "calibration"

# [evaluation]            # held-out samples; without them, a share of the calibration is held out
# path = "evaluation"
# labels = "labels.txt"     # one integer a line: the class of each of these samples

[build]
profiles = ["cpu"]        # edgepack profiles list
# metric = "mymetric:score"   # your own measure instead of the profile's: module:function
# hooks = "hooks"         # firmware hooks to ship with the model
# budget = "10m"          # time for the search (s, m or h); the best until then is taken

# [search]                # values to try: a profile's keys, each with a list
# quantize.activations = ["uint8", "uint16"]
"""

_VALUE_TEMPLATE = """\
# [build.value]           # an input that a device never changes becomes a constant
"""

_IMAGE_TEMPLATE = """\
[inputs.{name}]           # {spec}
kind = "image"            # "raw" if your files are arrays that are preprocessed already
layout = "{layout}"
color = "{color}"
size = {size}             # height, width
resize = "stretch"        # "letterbox" keeps the aspect and pads, "crop" cuts the middle out
scale = 0.00392156862745098   # a pixel p becomes (p * scale - mean) / std
mean = {mean}
std = {std}
"""


def _input_template(spec: TensorSpec) -> str:
    name = _quoted(spec.name)
    layout = _image_layout(spec)
    if layout:
        axes = (1, 2, 3) if layout == "NCHW" else (3, 1, 2)
        channels, height, width = (spec.shape[axis] for axis in axes)
        size = [height, width] if isinstance(height, int) and isinstance(width, int) else []
        gray = channels == 1
        return _IMAGE_TEMPLATE.format(
            name=name,
            spec=spec,
            layout=layout,
            color="GRAY" if gray else "RGB",
            size=size or "[320, 320]",
            mean=[0.0] if gray else [0.0] * 3,
            std=[1.0] if gray else [1.0] * 3,
        )
    if spec.dtype in ("int32", "int64"):
        return (
            f"[inputs.{name}]           # {spec}\n"
            'kind = "raw"              # or "tokens" with the size of the vocabulary:\n'
            "# vocabulary = 30522\n"
        )
    return f'[inputs.{name}]           # {spec}\nkind = "raw"\n'


def _image_layout(spec: TensorSpec) -> str:
    if len(spec.shape) != 4 or spec.dtype not in ("float32", "float16", "uint8"):
        return ""
    if spec.shape[1] in (1, 3):
        return "NCHW"
    return "NHWC" if spec.shape[3] in (1, 3) else ""


def _quoted(name: str) -> str:
    """A TOML key; quoted where a bare one is not allowed."""
    bare = name.isascii() and all(c.isalnum() or c in "_-" for c in name)
    return name if bare and name else msgspec.json.encode(name).decode()


def _size(size: str | int) -> Any:
    return size if isinstance(size, int) else 1


def _anchor(path: str, folder: Path) -> str:
    return path if not path or path.startswith("random:") else str(folder / path)


def _check_image(declaration: ImageInput, spec: TensorSpec, where: str) -> None:
    if len(spec.shape) != 4:
        raise BuildError(
            f"an image needs an input with four axes, {spec} has {len(spec.shape)}",
            found_in=where,
            remedy='kind = "raw"',
        )
    if declaration.size and len(declaration.size) != 2:
        raise BuildError("size is height and width", found_in=where, remedy="size = [320, 320]")
    channels = image_channels(declaration)
    axis = 1 if declaration.layout == "NCHW" else 3
    if isinstance(spec.shape[axis], int) and spec.shape[axis] != channels:
        raise BuildError(
            f"{declaration.color} has {channels} channels, axis {axis} of {spec} has "
            f"{spec.shape[axis]}",
            found_in=where,
            remedy="check layout and color",
        )
    for key, values in (("mean", declaration.mean), ("std", declaration.std)):
        if len(values) not in (1, channels):
            raise BuildError(
                f"{key} has {len(values)} values for {channels} channels",
                found_in=where,
                remedy=f"give one value, or {channels}",
            )
    if 0 in declaration.std:
        raise BuildError("std has a 0: it is divided by", found_in=where)
