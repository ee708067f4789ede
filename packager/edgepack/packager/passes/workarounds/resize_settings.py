"""What a Resize says of itself."""

import onnx

SCALES, SIZES = 2, 3
"""Which inputs hold the scales and the sizes."""

_DEFAULTS = {
    "mode": "nearest",
    "coordinate_transformation_mode": "half_pixel",
    "nearest_mode": "round_prefer_floor",
    "keep_aspect_ratio_policy": "stretch",
}
_OTHERWISE_SIZED = ("axes", "antialias")


def text_of(node: onnx.NodeProto, name: str) -> str:
    """An attribute that is a word, or what ONNX takes where it is not there."""
    values = [attribute.s.decode() for attribute in node.attribute if attribute.name == name]
    return values[0] if values else _DEFAULTS[name]


def is_plainly_sized(node: onnx.NodeProto) -> bool:
    """Whether a node is a Resize of every axis by a scale or a size, without crop or filter."""
    return (
        node.op_type == "Resize"
        and not node.domain
        and text_of(node, "keep_aspect_ratio_policy") == "stretch"
        and text_of(node, "coordinate_transformation_mode") != "tf_crop_and_resize"
        and all(attribute.name not in _OTHERWISE_SIZED for attribute in node.attribute)
    )
