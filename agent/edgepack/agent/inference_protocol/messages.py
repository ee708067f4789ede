"""Messages of the Open Inference Protocol v2, and the limits of a message."""

from typing import Any

import msgspec

from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.pictures.results import Box, Label, TextLine
from edgepack.tasks.description import NOTHING_KNOWN, ModelDescription
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

MAX_JSON_BYTES = 8 * 1024 * 1024
"""JSON of a request, at most: numbers take several times as much memory as their text."""
MAX_AXES = 32
MAX_TENSORS = 1024
JSON_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON in front of binary tensors, bytes."""

SERVER_NAME = "edgepack"
PLATFORM = "onnxruntime_onnx"
EXTENSIONS = (
    "binary_tensor_data",
    "sequence",
    "statistics",
    "system_shared_memory",
    "model_repository",
)


class TensorParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Place of a tensor's content outside of the JSON.

    Attributes:
        binary_data_size: Bytes of the tensor behind the JSON.
        binary_data: Whether a requested output should be binary; None leaves the request's default.
        shared_memory_region: Name of a registered region; "" for none.
        shared_memory_offset, shared_memory_byte_size: Place in the region, bytes.
        classification: Triton's extension, which this server does not have.
    """

    binary_data_size: int | None = None
    binary_data: bool | None = None
    shared_memory_region: str = ""
    shared_memory_offset: int = 0
    shared_memory_byte_size: int = 0
    classification: int = 0


class InputTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Input of an inference request."""

    name: str
    datatype: str
    shape: list[int]
    parameters: TensorParameters = TensorParameters()
    data: Any = None


class RequestedOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output that a request names."""

    name: str
    parameters: TensorParameters = TensorParameters()


class RequestParameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of an inference request.

    Attributes:
        binary_data_output: Whether outputs should be binary.
        sequence_id: Id of a sequence, whose inferences run on one release; 0 or "" for none.
        sequence_start, sequence_end: Whether the sequence begins or ends with this request.
    """

    binary_data_output: bool = False
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False


class InferRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Inference request; without `outputs`, all outputs are returned."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: RequestParameters = RequestParameters()
    outputs: list[RequestedOutput] = []


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Output of an inference."""

    name: str
    datatype: str
    shape: list[int]
    parameters: TensorParameters | None = None
    data: Any = None


class InferResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to an inference request."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[OutputTensor] = []


class ImageAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a picture.

    Attributes:
        model_name, model_version: Model, and the release that answers.
        width, height: Size of the picture upright, pixels.
        labels, boxes, text: See `edgepack.pictures.results.Answer`.
        lines: Lines of a page; None of a model that reads no pages.
    """

    model_name: str
    model_version: str
    width: int
    height: int
    labels: tuple[Label, ...] = ()
    boxes: tuple[Box, ...] = ()
    text: str | None = None
    lines: tuple[TextLine, ...] | None = None


class TensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Input or output of a model; -1 for a free dimension."""

    name: str
    datatype: str
    shape: list[int]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of edgepack about the serving release, in `parameters` of the metadata.

    Attributes:
        bundle, choice: Release, and choice of its variant.
        inputs, outputs: Tensors with the names of free dimensions.
        troubles: Reasons why newer releases could not be opened.
        description: Preparation of pictures, tasks of the outputs, names of classes.
    """

    bundle: BundleRef
    choice: Choice
    inputs: tuple[SessionTensor, ...] = ()
    outputs: tuple[SessionTensor, ...] = ()
    troubles: tuple[str, ...] = ()
    description: ModelDescription = NOTHING_KNOWN


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: ModelFacts


class SequenceRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Start of a sequence without an inference; see `ModelSession`."""

    sequence_id: str
    hold_s: float = 600.0


class SequenceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Release of a started sequence."""

    sequence_id: str
    bundle: BundleRef
    choice: Choice


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A registered region, as reported to clients."""

    name: str
    key: str
    offset: int
    byte_size: int


class RegisterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a region: a POSIX shared memory object, and bytes in it."""

    key: str
    byte_size: int
    offset: int = 0


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the server."""

    name: str
    version: str
    extensions: tuple[str, ...]


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """State of the server: false if an inference hangs."""

    live: bool


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """State of all models: false if one does not serve."""

    ready: bool


class ModelReady(msgspec.Struct, frozen=True, kw_only=True):
    """State of a model."""

    name: str
    ready: bool


class ModelNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the models that serve."""

    models: list[str]


class ModelIndex(msgspec.Struct, frozen=True, kw_only=True):
    """State of a model; `reason` says why the model does not serve."""

    name: str
    version: str = ""
    state: str
    reason: str = ""


class Empty(msgspec.Struct, frozen=True):
    """Answer without content."""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Answer to a request that failed: problem, place and remedy in one text."""

    error: str
