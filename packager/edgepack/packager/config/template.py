"""Write a commented `edgepack.toml` for a model, as `edgepack init` does.

Names come from a model that nobody has vetted: every key and value is written by a TOML library,
and text in comments is made printable, so that no name adds a line or a key of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import Table

from edgepack.packager.config.outputs import DECLARABLE, declared_keys
from edgepack.packager.source.shape_advice import Shapes
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.description import IGNORED, ModelDescription, TaskOutputs
from edgepack.text import printable

_ABOUT = """\
[about]                 # facts for the bundle's bill of materials; every key may be left out
license = "Apache-2.0"  # SPDX expression; LicenseRef-NAME for a license that SPDX does not list
producer = "Example Vision"
intended_use = "reading meters"

[datasets.NAME]         # one section for each data set used to train or evaluate the model
used_for = "training"   # or "calibration", "evaluation"
license = "CC-BY-4.0"
"""

_CALIBRATION = """\
A folder of .npz or .npy files (one sample each), one .npz with a leading sample axis,
ONNX test data (test_data_set_0/input_0.pb …), or a folder of images. 100 to 300 are usual;
450 can prove that a classifier keeps 98 % of its decisions (three tenths are held out).
"""

_EVALUATION = """\
[evaluation]            # held-out samples; without them, a share of the calibration is held out
path = "evaluation"
labels = "labels.txt"   # one integer a line: the class of each of these samples
"""

_BUILD = """\
hooks = "hooks"         # firmware hooks to ship with the model
firmware = ["rauc:2.4.0=camera.raucb"]  # firmware that devices must run for the model
feedback = "feedback.json"  # measurements of earlier releases: edgepack fleet feedback
metric = "mymetric:score"   # your own measure instead of the profile's: module:function
toolchain = { openvino-cpu = "intel/bin/python" }  # environment with the devices' toolchain
plain_runtimes = ["oldest/bin/python"]  # other releases of ONNX Runtime that applications have
prefer = "speed"        # or "size", "balanced", "device": the goal of quantization
leave_out_pictures = true  # no pictures of the samples in the bundle
budget = "10m"          # time for the build (s, m or h)
"""

_CODE = """\
hooks, firmware, metric, toolchain and plain_runtimes name code: edgepack asks before it runs any.
"""

_OUTPUTS = """\
[outputs.NAME]          # meaning of an output, where its values do not show it
task = "embedding"      # or "classification", "values", "detections", "segmentation", "ignored"

[search]                # values to try: a profile's keys, each with a list
quantize.activations = ["uint8", "uint16"]
"""


def template(
    model_file: str,
    inputs: tuple[TensorSpec, ...],
    shapes: Shapes,
    description: ModelDescription | None = None,
    possible: Mapping[str, Sequence[str]] = {},
    calibration: str = "",
    states: Mapping[str, Sequence[str]] = {},
    *,
    are_arrays: bool = False,
) -> str:
    """Return a commented `edgepack.toml` with a likely declaration for each input.

    Args:
        model_file: Name of the model's file.
        inputs: The model's inputs.
        shapes: Sizes with which the model runs, by input; at least of inputs with open sizes.
        description: Meaning of the outputs; None without samples.
        possible: Tasks that fit each output of unknown meaning, the likeliest first.
        calibration: Path of the samples; "" for none.
        states: Inputs that may be states, each with the outputs that may feed it.
        are_arrays: The samples are arrays: no input is declared as an image.
    """
    document = tomlkit.document()
    _comment(
        document,
        f"How to build {printable(model_file)} with edgepack. Options on the command line win "
        "over this file.",
    )
    document.add(tomlkit.nl())
    model = tomlkit.table()
    stem = Path(model_file).stem
    model.add("name", "".join(c if c.isalnum() or c in "._-" else "-" for c in stem))
    _comment(
        model, "The version comes from the output's name, -o NAME-1.2.0.edgepack, or --version."
    )
    _comment(model, "release = 1000000     # counter that only goes up; default: 1.2.0 -> 1002000")
    model.add(tomlkit.nl())
    _comment(model, _ABOUT)
    model.add(tomlkit.nl())
    document.add("model", model)
    declared = tomlkit.table(is_super_table=True)
    for spec in inputs:
        table = _input_table(spec, are_arrays=are_arrays)
        is_raw = table["kind"] == "raw"
        for line in _ask_for_state(states.get(spec.name, ()) if is_raw else ()):
            _comment(table, line)
        table.add(tomlkit.nl())
        declared.add(tomlkit.key([spec.name]), table)
    document.add("inputs", declared)
    if description is not None and description.parts:
        outputs = tomlkit.table(is_super_table=True)
        for part in description.parts:
            for name, table in _output_tables(part):
                outputs.add(tomlkit.key([name]), table)
        document.add("outputs", outputs)
    if description is not None:  # before the next section: these lines open sections of their own
        for line in _ask_for_tasks(possible):
            _comment(document, line)
        document.add(tomlkit.nl())
    samples = tomlkit.table()
    _comment(samples, _CALIBRATION)
    samples.add("path", calibration or "calibration")
    samples.add(tomlkit.nl())
    _comment(samples, _EVALUATION)
    samples.add(tomlkit.nl())
    document.add("calibration", samples)
    document.add("build", _build_table(inputs, shapes))
    return tomlkit.dumps(document)


def _comment(container: Table | tomlkit.TOMLDocument, text: str) -> None:
    """Add each line of a text as a comment, and an empty line as an empty line."""
    for line in text.splitlines():
        container.add(tomlkit.comment(line) if line else tomlkit.nl())


def _add(table: Table, name: str, value: Any, comment: str) -> None:
    """Add a key with a comment."""
    item = tomlkit.item(value)
    item.comment(comment)
    table.add(name, item)


def _input_table(spec: TensorSpec, *, are_arrays: bool) -> Table:
    """Return the declaration of an input."""
    table = tomlkit.table()
    table.comment(printable(str(spec)))
    picture = _picture_of(spec)
    if picture and are_arrays:
        _add(
            table, "kind", "raw", '"image" for pictures: init without --calibration shows its keys'
        )
    elif picture:
        channels = 1 if picture.channels == 1 else 3
        _add(table, "kind", "image", '"raw" if your files are arrays, already preprocessed')
        table.add("layout", picture.layout)
        table.add("color", "GRAY" if channels == 1 else "RGB")
        _add(table, "size", picture.size or [320, 320], "height, width")
        _add(
            table, "resize", "stretch", '"letterbox", "crop", or "short_side" with short_side = 256'
        )
        _add(table, "scale", 1 / 255, "a pixel p becomes (p * scale - mean) / std")
        table.add("mean", [0.0] * channels)
        table.add("std", [1.0] * channels)
        _comment(table, "prepared_as_trained = true   # these are the training's: no warning")
    elif spec.dtype in ("int32", "int64"):
        _add(table, "kind", "raw", 'or "tokens" with the size of the vocabulary:')
        _comment(table, "vocabulary = 30522")
    else:
        table.add("kind", "raw")
    return table


def _ask_for_state(outputs: Sequence[str]) -> Iterator[str]:
    """Yield comment lines that declare a state, which one of the outputs may feed."""
    if not outputs:
        return
    first, *others = (printable(tomlkit.dumps({"from": name}).strip()) for name in outputs)
    or_others = "".join(f" or {other}" for other in others)
    yield "If this input is a state: the output of the inference before that feeds it, and after"
    yield "how many inferences it begins anew. The samples then hold whole series."
    yield f'{first}  #{or_others} or "" for no state'
    yield "steps = 50"


def _output_tables(part: TaskOutputs) -> Iterator[tuple[str, Table]]:
    """Yield the declaration of each output of a task."""
    names = part.outputs[:1] if part.task == "detections" else part.outputs
    if part.task not in DECLARABLE:
        return
    for name in names:
        table = tomlkit.table()
        _add(table, "task", part.task, f"known by: {part.source}")
        for key, value in declared_keys(part).items():
            table.add(key, value)
        table.add(tomlkit.nl())
        yield name, table


def _ask_for_tasks(possible: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield comment lines that declare the outputs of unknown meaning."""
    if possible:
        yield "Nothing shows what these outputs mean. Each line names the tasks that fit."
    for name, tasks in possible.items():
        yield printable(tomlkit.dumps({"outputs": {name: {}}}).strip())
        others = ", ".join(f'"{task}"' for task in (*tasks[1:], IGNORED))
        yield f'task = "{tasks[0]}"  # or {others}'


def _build_table(inputs: tuple[TensorSpec, ...], shapes: Shapes) -> Table:
    """Return `[build]`, with examples of every other key as comments."""
    table = tomlkit.table()
    _add(table, "profiles", ["cpu"], "edgepack profiles list")
    _comment(table, _BUILD)
    _comment(table, _CODE)
    table.add(tomlkit.nl())
    _comment(table, _OUTPUTS)
    examples = (
        (
            "[build.shape]           # sizes, for hardware that wants them fixed; examples",
            {spec.name: list(shapes[spec.name]) for spec in inputs if not spec.is_static},
        ),
        (
            "[build.value]           # an input that a device never changes becomes a constant",
            {spec.name: 1 for spec in inputs if not spec.shape},
        ),
    )
    by_name = {spec.name: spec for spec in inputs}
    for heading, values in examples:
        if values:
            table.add(tomlkit.nl())
            _comment(table, heading)
        for name, value in values.items():
            # The encoder leaves some line separators as they are; a comment must not hold them.
            line = printable(tomlkit.dumps({name: value}).strip())
            _comment(table, f"{line}  # {printable(str(by_name[name]))}")
    return table


class _Picture(NamedTuple):
    layout: str
    channels: int | str
    size: list[int | str]


def _picture_of(spec: TensorSpec) -> _Picture | None:
    """Return the layout of a picture input, if its shape fits a picture; an open size is empty."""
    if len(spec.shape) != 4 or spec.dtype not in ("float32", "float16", "uint8"):
        return None
    for layout, axes in (("NCHW", (1, 2, 3)), ("NHWC", (3, 1, 2))):
        channels, *size = (spec.shape[axis] for axis in axes)
        if channels in (1, 3):
            is_open = any(isinstance(side, str) for side in size)
            return _Picture(layout, channels, [] if is_open else size)
    return None
