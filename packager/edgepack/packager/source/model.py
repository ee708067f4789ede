"""The source model: the ONNX file a build starts from, loaded and checked.

`load_source` opens in this order, so that each mistake gets its own words:

1. The path is a file and looks like ONNX (`file_kinds`).
2. The file parses, and has a graph, inputs, outputs and an opset.
3. Its external data are there, inside the model's folder (`external_files`).
4. The installed ONNX Runtime knows its opset and IR version, and opset 7 is the oldest.
5. The caller's shapes and values fit its inputs (`fixed_inputs`), and control flow
   decided by them is gone (`known_branches`).
6. Its weights are numbers: no NaN anywhere, no infinity in a computation (`soundness`).
7. Its operators are known, and its inputs and outputs are tensors of numbers.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from edgepack.errors import BuildError, located
from edgepack.packager.graph.edits import sort_nodes
from edgepack.packager.graph.float_types import replace_bfloat16
from edgepack.packager.graph.model_files import attach_weights
from edgepack.packager.graph.stored_tensors import external_files
from edgepack.packager.source import file_kinds
from edgepack.packager.source.encoders import EncoderSource
from edgepack.packager.source.fixed_inputs import (
    FixedInput,
    Numbers,
    describe_fixed,
    fix_shapes,
    fix_values,
    read_shape,
)
from edgepack.packager.source.known_branches import take_known_branches
from edgepack.packager.source.lookups import find_lookups
from edgepack.packager.source.soundness import (
    check_graph,
    check_inference_form,
    check_operators,
    check_versions,
    check_weights,
)
from edgepack.packager.source.stated_facts import StatedFacts, read_metadata
from edgepack.packager.source.texts import TextSource
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.description import NOTHING_KNOWN, SELECTION, ModelDescription, TaskOutputs

_KINDS = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "an optional value",
    "sparse_tensor_type": "a sparse tensor",
    "opaque_type": "an opaque value",
}


class SourceModel(msgspec.Struct, frozen=True, kw_only=True):
    """A checked ONNX model in memory; not to be changed: passes work on copies.

    Attributes:
        path: The file.
        model: The model with the caller's shapes and values applied. Its external data are loaded,
            but for the weights of a model that is too large for protobuf (see `attach_weights`).
        sha256: Digest of the file's bytes and of its external data, hex.
        size_bytes: Size of the file and of its external data.
        inputs: Inputs a caller must feed: without initializers listed as inputs.
        fixed: Inputs of the file's model that have become constants here.
        outputs: Outputs of the file's model.
        watched: Further outputs of `model`: inner floats for the evaluation; see `watched_outputs`.
        description: Meaning of outputs, from a person, the graph or metadata.
        opset: Version of the default operator set.
        notes: Notes on the model for a person, a sentence each.
        stated: Statements in its own files.
        folder: The Hugging Face folder of the model; None for other models.
        labels: Names of classes in this folder, in their order.
        texts: Facts and files of a decoder that generates texts; None for other models.
        encoder: Makes vectors of texts; None for other models.
        unprepared: Reason why this folder's preparation of pictures is not taken; "" without one.
    """

    path: Path
    model: onnx.ModelProto
    sha256: str
    size_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    fixed: tuple[FixedInput, ...] = ()
    notes: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    description: ModelDescription = NOTHING_KNOWN
    stated: StatedFacts = StatedFacts()
    folder: Path | None = None
    labels: tuple[str, ...] = ()
    texts: TextSource | None = None
    encoder: EncoderSource | None = None
    unprepared: str = ""

    def with_parts(self, *parts: TaskOutputs) -> "SourceModel":
        """Return the model with more of its outputs described."""
        return replace(self, description=self.description.with_parts(*parts))

    def with_head(self, head: TaskOutputs) -> "SourceModel":
        """Return the model with a head, which takes the place of selections among its outputs."""
        parts = tuple(
            part
            for part in self.description.parts
            if part.task != SELECTION or set(part.outputs).isdisjoint(head.outputs)
        )
        return replace(self, description=replace(self.description, parts=parts)).with_parts(head)


def load_source(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, Numbers] | None = None,
) -> SourceModel:
    """Load an ONNX model with its external data and check that a build is possible.

    Args:
        path: The `.onnx` file.
        shapes: Shapes to fix, by input name: as many sizes as the input has axes, each > 0.
        values: Inputs that become constants, by name.

    Returns:
        The model.

    Raises:
        BuildError: The file is not an ONNX model that can be built from, or a shape or a value does
            not fit.
    """
    model = read_graph(path)
    external = external_files(path, model)
    with located(path):
        _check_structure(model)
        opset = check_versions(model)
    attach_weights(model, path.parent)
    with located(path):
        check_operators(model)
        check_inference_form(model)
        checker_notes = check_graph(path)
    sort_nodes(model.graph)
    fix_shapes(model, required_inputs(model), shapes or {})
    fixed = fix_values(model, required_inputs(model), values or {})
    take_known_branches(model)
    with located(path):
        notes = (
            *checker_notes,
            *describe_fixed(fixed),
            *_describe_defaults(model),
            *check_weights(model),
            *replace_bfloat16(model),
        )
        lookups = find_lookups(model.graph)
        inputs = tuple(
            replace(_spec(value, "input"), lookup=lookups.get(value.name))
            for value in required_inputs(model)
        )
        outputs = tuple(_spec(value, "output") for value in model.graph.output)
    files = (path, *external)
    return SourceModel(
        path=path,
        model=model,
        sha256=_digest(files),
        size_bytes=sum(file.stat().st_size for file in files),
        inputs=inputs,
        outputs=outputs,
        opset=opset,
        fixed=fixed,
        notes=notes,
        stated=read_metadata(model),
    )


def required_inputs(model: onnx.ModelProto) -> tuple[onnx.ValueInfoProto, ...]:
    """Return the graph inputs that have no initializer of the same name."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(value for value in model.graph.input if value.name not in initializers)


def _describe_defaults(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return a note on inputs with default values, unless the defaults are only a form of storing
    weights.

    Below IR version 4 every initializer is an input too, and exporters kept to that for long: if
    all initializers are inputs, none is meant to be fed.
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    defaults = [value.name for value in model.graph.input if value.name in initializers]
    if not defaults or len(defaults) == len(initializers):
        return ()
    return (
        f"Inputs with a default value keep it and cannot be fed any more: {', '.join(defaults)}.",
    )


def read_graph(path: Path) -> onnx.ModelProto:
    """Return the model in a file; external data are not read.

    Raises:
        BuildError: The file is no ONNX model; the message states the probable format.
    """
    file_kinds.check(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise file_kinds.unreadable(path) from error
    if not model.HasField("graph") or not model.opset_import:
        raise file_kinds.unreadable(path)
    return model


def _check_structure(model: onnx.ModelProto) -> None:
    if not model.graph.node:
        raise BuildError("the model has no nodes: there is nothing to run")
    if not required_inputs(model):
        raise BuildError(
            "the model has no inputs: its outputs never change, so there is nothing to deploy",
            remedy="export it with the values that change as graph inputs",
        )
    if not model.graph.output:
        raise BuildError("the model has no outputs")


def _spec(value: onnx.ValueInfoProto, noun: str) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or ""
        raise BuildError(
            f"{noun} {value.name!r} is {_KINDS.get(kind, 'a value without a type')}: only tensors "
            "go into and come out of a device's model",
            remedy="export the model with tensors as inputs and outputs (for scikit-learn: "
            "options={'zipmap': False})",
        )
    tensor = value.type.tensor_type
    if noun == "input" and not tensor.HasField("shape"):
        raise BuildError(
            f"input {value.name!r} has no shape, not even a number of dimensions",
            remedy=f"--shape {value.name}=1,3,320,320 with the sizes that it takes",
        )
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise BuildError(
            f"{noun} {value.name!r} is a tensor of texts: only numbers go into and come out of a "
            "device's model",
            remedy="export the model without its text processing, which stays with the application "
            "(for a classifier: with numbers for its classes)",
        )
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return TensorSpec(name=value.name, dtype=dtype, shape=read_shape(value))


def _digest(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()
