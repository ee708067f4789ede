"""A commented `edgepack.toml` for a model, as `edgepack init` writes it."""

from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2

from edgepack.packager.source.shape_advice import Shapes
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key

_FOLDER = "edgepack.packager.config"
_FILE = "edgepack.toml.jinja"


def template(model_file: str, inputs: tuple[TensorSpec, ...], shapes: Shapes) -> str:
    """A commented `edgepack.toml` for a model, with a likely declaration for each input.

    Args:
        model_file: Name of the model's file.
        inputs: The model's inputs.
        shapes: Sizes with which it runs, by input; of those with open ones at least.
    """
    page: jinja2.Template = jinja2.Template(
        (resources.files(_FOLDER) / _FILE).read_text(encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return page.render(
        file=model_file,
        name="".join(c if c.isalnum() or c in "._-" else "-" for c in Path(model_file).stem),
        inputs=inputs,
        shapes=shapes,
        key=toml_key,
        picture_of=_picture_of,
    )


class _Picture(NamedTuple):
    layout: str
    channels: int | str
    size: list[int | str]


def _picture_of(spec: TensorSpec) -> _Picture | None:
    """How an input takes a picture, if it looks like one; its size is empty where it is open."""
    if len(spec.shape) != 4 or spec.dtype not in ("float32", "float16", "uint8"):
        return None
    for layout, axes in (("NCHW", (1, 2, 3)), ("NHWC", (3, 1, 2))):
        channels, *size = (spec.shape[axis] for axis in axes)
        if channels in (1, 3):
            is_open = any(isinstance(side, str) for side in size)
            return _Picture(layout, channels, [] if is_open else size)
    return None
