"""Preparation of pictures as a Hugging Face folder states it: `preprocessor_config.json`.

The file belongs to a class of transformers. Known are the classes whose steps a bundle can state,
in the form that works with Pillow: resize, cut the middle out, rescale, normalize. Strangers wrote
the file: its values are bounded like those of `[inputs]`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.packager.config.inputs import ImageInput

FILE = "preprocessor_config.json"
INPUT = "pixel_values"
"""Name of the picture's input in every export of a transformers model."""

_MOST_BYTES = 1 << 20
_MALFORMED = (
    ArithmeticError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.ValidationError,
)
_ENDINGS = ("Fast", "ImageProcessor", "FeatureExtractor")
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By Pillow's numbers."""

_BILINEAR, _BICUBIC = 2, 3
_WARPED_FROM = 384
"""ConvNext ignores the aspect from this size on."""

_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "ViT": {"resample": _BILINEAR, "size": 224},
    "Siglip": {"resample": _BICUBIC, "size": 224},
    "DeiT": {"resample": _BICUBIC, "size": 256, "do_center_crop": True},
    "Beit": {"resample": _BICUBIC, "size": 256, "do_center_crop": True},
    "ConvNext": {"resample": _BILINEAR, "size": {"shortest_edge": 384}, "crop_pct": 224 / 256},
    "CLIP": {"resample": _BICUBIC, "size": {"shortest_edge": 224}, "do_center_crop": True},
    "Bit": {"resample": _BICUBIC, "size": {"shortest_edge": 224}, "do_center_crop": True},
    "MobileNetV1": {"resample": _BILINEAR, "size": {"shortest_edge": 256}, "do_center_crop": True},
    "MobileNetV2": {"resample": _BILINEAR, "size": {"shortest_edge": 256}, "do_center_crop": True},
}
"""Values that each class takes where the file has none."""

_BY_SHORTEST = ("CLIP", "Bit", "MobileNetV1", "MobileNetV2")
"""Classes that take a single size as the shorter side."""

_SHARED: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_center_crop": False,
    "crop_size": 224,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def read_image_processor(folder: Path) -> ImageInput | None:
    """Return the preparation that a Hugging Face folder states; None without the file.

    Raises:
        BuildError: The file cannot be read, or is for a class or for steps that are not known.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            stated = json.loads(file.read(_MOST_BYTES))
        return _image_input(stated if isinstance(stated, dict) else {})
    except _MALFORMED as e:
        raise BuildError(
            f"the preparation of pictures in {FILE} is not known: {e}",
            found_in=str(path),
            remedy=f'declare it: [inputs.{INPUT}] with kind = "image" in edgepack.toml',
        ) from e


def _image_input(stated: Mapping[str, Any]) -> ImageInput:
    kind = str(stated.get("image_processor_type") or stated.get("feature_extractor_type") or "")
    for ending in _ENDINGS:
        kind = kind.removesuffix(ending)
    if kind not in _KNOWN:
        known = ", ".join(f"{name}ImageProcessor" for name in _KNOWN)
        raise ValueError(f"class {kind[:100]!a} is not one of {known}")
    told = {**_SHARED, **_KNOWN[kind], **{key: it for key, it in stated.items() if it is not None}}
    if not told["do_resize"]:
        raise ValueError("do_resize is false: pictures of any size are not prepared")
    values: dict[str, Any] = {
        "kind": "image",
        "filter": _FILTERS[int(told["resample"])],
        "scale": told["rescale_factor"] if told["do_rescale"] else 1.0,
        "mean": _as_list(told["image_mean"]) if told["do_normalize"] else [0.0],
        "std": _as_list(told["image_std"]) if told["do_normalize"] else [1.0],
        "prepared_as_trained": True,
    }
    return convert_value(values | _resize(kind, told), ImageInput)


def _resize(kind: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return size and way of resizing."""
    size = told["size"]
    if isinstance(size, int):
        size = {"shortest_edge": size} if kind in _BY_SHORTEST else {"height": size, "width": size}
    if kind == "ConvNext":
        side = int(size["shortest_edge"])
        if side >= _WARPED_FROM:
            return {"size": [side, side], "resize": "stretch"}
        return _cut([side, side], int(side / float(told["crop_pct"])))
    if not told["do_center_crop"] and "shortest_edge" not in size:
        return {"size": [size["height"], size["width"]], "resize": "stretch"}
    crop = told["crop_size"]
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    if not told["do_center_crop"]:
        raise ValueError("the steps of size, do_center_crop and crop_size are not known")
    cut = [crop["height"], crop["width"]]
    if "shortest_edge" in size:
        return _cut(cut, size["shortest_edge"])
    if size["height"] != size["width"] or cut[0] != cut[1]:
        raise ValueError("a picture that is no square is stretched and cut")
    return _cut(cut, size["height"]) | {"resize": "stretch"}


def _cut(size: list[int], short_side: int) -> dict[str, Any]:
    if short_side < max(size):
        raise ValueError("the picture is padded: its shorter side is below the size")
    return {"size": size, "resize": "short_side", "short_side": short_side}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
