"""A commented `edgepack.toml` for a model, as `edgepack init` writes it."""

from pathlib import Path

from edgepack.packager.source.shape_advice import Shapes
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key


def template(model_file: str, inputs: tuple[TensorSpec, ...], shapes: Shapes) -> str:
    """A commented `edgepack.toml` for a model, with a likely declaration for each input.

    Args:
        model_file: Name of the model's file.
        inputs: The model's inputs.
        shapes: Sizes with which it runs, by input; of those with open ones at least.
    """
    stem = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(model_file).stem)
    sections = [_TEMPLATE_HEAD.format(file=model_file, name=stem)]
    sections += [_input_template(spec) for spec in inputs]
    open_inputs = [spec for spec in inputs if not spec.is_static]
    shape = "".join(
        f"# {toml_key(spec.name)} = {list(shapes[spec.name])}  # {spec}\n" for spec in open_inputs
    )
    sections.append(_TEMPLATE_TAIL + (f"{_SHAPE_TEMPLATE}{shape}" if shape else ""))
    scalars = [f"# {toml_key(spec.name)} = 1\n" for spec in inputs if not spec.shape]
    if scalars:
        sections.append("".join([_VALUE_TEMPLATE, *scalars]))
    return "\n".join(sections)


_TEMPLATE_HEAD = """\
# How to build {file} with edgepack. Options on the command line win over this file.

[model]
name = "{name}"
version = "1.0.0"
# release = 1000000     # counter that only goes up; by default from the version: 1.2.0 -> 1002000

# [about]                 # what the bundle's bill of materials says of it; all keys may be left out
# license = "Apache-2.0"  # SPDX expression; LicenseRef-NAME for one that SPDX does not list
# producer = "Example Vision"
# intended_use = "reading meters"

# [datasets.NAME]         # one section for each data set that it was made or judged with
# used_for = "training"   # or "calibration", "evaluation"
# license = "CC-BY-4.0"
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
# feedback = "feedback.json"  # what a fleet measured of earlier releases: edgepack fleet feedback
# toolchain = { openvino-cpu = "intel/bin/python" }  # where its variant is tried, as on its devices
# plain_runtimes = ["oldest/bin/python"]  # other releases of ONNX Runtime that applications have
# prefer = "speed"        # or "size", "balanced", "device": what a quantized model must be
# budget = "10m"          # time for the build (s, m or h); the best until then is taken

# [outputs.NAME]          # what an output means, where its values do not tell
# kind = "embedding"      # or "scores", "values", "detections", "segmentation", "ignored"

# [search]                # values to try: a profile's keys, each with a list
# quantize.activations = ["uint8", "uint16"]
"""

_SHAPE_TEMPLATE = """
# [build.shape]           # sizes, for hardware that wants them fixed; these are examples
"""

_VALUE_TEMPLATE = """\
# [build.value]           # an input that a device never changes becomes a constant
"""

_IMAGE_TEMPLATE = """\
[inputs.{name}]  # {spec}
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
    name = toml_key(spec.name)
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
            f"[inputs.{name}]  # {spec}\n"
            'kind = "raw"              # or "tokens" with the size of the vocabulary:\n'
            "# vocabulary = 30522\n"
        )
    return f'[inputs.{name}]  # {spec}\nkind = "raw"\n'


def _image_layout(spec: TensorSpec) -> str:
    if len(spec.shape) != 4 or spec.dtype not in ("float32", "float16", "uint8"):
        return ""
    if spec.shape[1] in (1, 3):
        return "NCHW"
    return "NHWC" if spec.shape[3] in (1, 3) else ""
