"""Inference requests of the protocol: inputs from bytes, JSON or shared memory, and the answer."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from edgepack.agent.inference_protocol.messages import (
    JSON_LENGTH,
    MAX_JSON_BYTES,
    MAX_TENSORS,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    TensorParameters,
)
from edgepack.agent.inference_protocol.tensors import (
    count_values,
    datatype_of_array,
    dtype_of,
    read_binary,
    read_json,
)
from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.server.connection import Request
from edgepack.agent.server.http_messages import BINARY, HttpError, Response
from edgepack.agent.server.regions import SEALED, Regions
from edgepack.decoding import json_decoder

_LENGTH_FIELD = JSON_LENGTH.lower().encode()
_DECODER = json_decoder(InferRequest)
_ALIGNMENT = 64
LARGE_JSON_BYTES = 32 * 1024
"""JSON of a request from which on a thread reads it: the event loop must not wait for numbers."""
LARGE_VALUES = 8192
"""Values of an answer in JSON, likewise."""


class Decoded(NamedTuple):
    """Inference request with its inputs.

    Attributes:
        message: Its message.
        feeds: Inputs by name.
        find_peer: Returns the user of the client; None if not known.
    """

    message: InferRequest
    feeds: dict[str, Tensor]
    find_peer: Callable[[], int | None]


def split_body(request: Request) -> tuple[memoryview, memoryview]:
    """Return the JSON of a request, and the binary tensors behind.

    Raises:
        HttpError: The length of the JSON is wrong, or too large.
    """
    body, length = request.body, request.head.fields.get(_LENGTH_FIELD)
    binary = body[len(body) :]
    if length is not None:
        if not length.isdigit() or len(length) > 12 or int(length) > len(body):
            raise HttpError(400, f"{JSON_LENGTH} is not a length within the body")
        body, binary = body[: int(length)], body[int(length) :]
    if len(body) > MAX_JSON_BYTES:
        raise HttpError(
            413,
            f"the JSON has more than {MAX_JSON_BYTES} bytes: send tensors in binary form",
        )
    return body, binary


def _read_message(text: memoryview) -> InferRequest:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the JSON of the request is malformed: {error}") from error


def read_large(text: memoryview) -> InferRequest:
    """Return a message with arrays in place of its lists of values; in any thread.

    Args:
        text: JSON.

    Raises:
        HttpError: The JSON or a list is malformed.
    """
    message = _read_message(text)
    inputs = []
    try:
        for tensor in message.inputs:
            place, data = tensor.parameters, tensor.data
            if data is not None and place.binary_data_size is None:
                dtype = dtype_of(tensor.name, tensor.datatype)
                data = read_json(tensor.name, dtype, tensor.shape, data)
            inputs.append(msgspec.structs.replace(tensor, data=data))
    except ValueError as error:
        raise HttpError(400, str(error)) from error
    return msgspec.structs.replace(message, inputs=inputs)


def decode_request(
    request: Request, regions: Regions, message: InferRequest | None = None
) -> Decoded:
    """Return an inference request with its inputs.

    Args:
        request: JSON, with or without binary tensors behind.
        regions: Regions of shared memory.
        message: The JSON as `read_large` returns it; None to read the JSON.

    Raises:
        HttpError: The request is malformed.
    """
    text, binary = split_body(request)
    if message is None:
        message = _read_message(text)
    at = 0

    def take(tensor: InputTensor, size: int) -> memoryview:
        nonlocal at
        if size < 0 or at + size > len(binary):
            raise HttpError(400, f"input {tensor.name[:100]!a} ends behind the end of the body")
        at += size
        return binary[at - size : at]

    decoded = decode_inputs(message, take, request.find_peer, regions)
    if at != len(binary):
        raise HttpError(400, f"the body has {len(binary) - at} bytes that belong to no input")
    return decoded


def decode_inputs(
    message: InferRequest,
    take: Callable[[InputTensor, int], memoryview],
    find_peer: Callable[[], int | None],
    regions: Regions,
) -> Decoded:
    """Return the inputs of a message.

    Args:
        message: The message.
        take: Returns the binary content of an input, of a number of bytes; called in order.
        find_peer: Returns the user of the client; None if not known.
        regions: Regions of shared memory.

    Raises:
        HttpError: An input is malformed.
    """
    if len(message.inputs) > MAX_TENSORS or len(message.outputs) > MAX_TENSORS:
        raise HttpError(400, f"a request has at most {MAX_TENSORS} inputs and outputs")
    feeds: dict[str, Tensor] = {}
    try:
        for tensor in message.inputs:
            if tensor.name in feeds:
                raise HttpError(400, f"the request has input {tensor.name[:100]!a} twice")
            size = tensor.parameters.binary_data_size
            if size is not None:
                dtype = dtype_of(tensor.name, tensor.datatype)
                content = take(tensor, size)
                feeds[tensor.name] = read_binary(tensor.name, dtype, tensor.shape, content)
            else:
                feeds[tensor.name] = _read(tensor, find_peer, regions)
    except ValueError as error:
        raise HttpError(400, str(error)) from error
    return Decoded(message, feeds, find_peer)


def _read(tensor: InputTensor, find_peer: Callable[[], int | None], regions: Regions) -> Tensor:
    """Return an input of a region, or of JSON.

    Raises:
        HttpError: There is no such region, or the input is not in the region.
        ValueError: The content does not fit.
    """
    dtype, place = dtype_of(tensor.name, tensor.datatype), tensor.parameters
    if place.shared_memory_region:
        expected = count_values(tensor.name, tensor.shape) * dtype.itemsize
        if place.shared_memory_byte_size != expected:
            raise ValueError(
                f"input '{tensor.name[:100]}' has {place.shared_memory_byte_size} bytes of shared "
                f"memory, its shape and datatype need {expected}"
            )
        content = regions.read(place, find_peer())
        array = read_binary(tensor.name, dtype, tensor.shape, content)
        # A client may write to sealed memory at any time: an index must not change after its check.
        is_fixed = dtype.kind == "f" or not place.shared_memory_region.startswith(SEALED)
        return array if is_fixed else array.copy()
    if tensor.data is None:
        raise ValueError(f"input '{tensor.name[:100]}' has no data")
    if isinstance(tensor.data, np.ndarray):
        return tensor.data
    return read_json(tensor.name, dtype, tensor.shape, tensor.data)


def check_outputs(message: InferRequest, names: tuple[str, ...]) -> None:
    """Check the outputs that a request names.

    Raises:
        HttpError: The model has no such output, or the server no such extension.
    """
    for output in message.outputs:
        if output.name not in names:
            raise HttpError(
                400, f"the model's outputs are {', '.join(names)}; named: {output.name[:100]!a}"
            )
        if output.parameters.classification:
            raise HttpError(400, "the server does not have the classification extension")


def count_json_values(message: InferRequest, outputs: Mapping[str, Tensor]) -> int:
    """Return the number of values that an answer has in JSON; 0 with outputs in shared memory."""
    default, count = message.parameters.binary_data_output, 0
    for name, place in _wanted(message, outputs):
        if place.shared_memory_region:
            return 0
        is_binary = default if place.binary_data is None else place.binary_data
        if not is_binary and name in outputs:
            count += outputs[name].size
    return count


def _wanted(
    message: InferRequest, outputs: Mapping[str, Tensor]
) -> list[tuple[str, TensorParameters]]:
    named = [(one.name, one.parameters) for one in message.outputs]
    return named or [(one, TensorParameters()) for one in outputs]


def describe_outputs(
    decoded: Decoded, outputs: Mapping[str, Tensor], name: str, version: str, regions: Regions
) -> tuple[InferResponse, list[memoryview]]:
    """Return the message that answers an inference request, and binary outputs in order.

    Args:
        decoded: The request.
        outputs: Outputs of the model.
        name, version: The model, and the release that ran.
        regions: Regions of shared memory, which may take outputs.

    Raises:
        HttpError: An output cannot be represented or written.
    """
    message = decoded.message
    check_outputs(message, tuple(outputs))  # A release with other outputs may have run.
    default = message.parameters.binary_data_output
    described: list[OutputTensor] = []
    binary: list[memoryview] = []
    for output, place in _wanted(message, outputs):
        array = np.ascontiguousarray(outputs[output])
        shape = list(outputs[output].shape)
        try:
            datatype = datatype_of_array(array)
        except ValueError as error:
            raise HttpError(500, f"output '{output}': {error}") from error
        parameters: TensorParameters | None = None
        data: object = None
        if place.shared_memory_region:
            content = array.reshape(-1).view(np.uint8).data
            regions.write(place, content, decoded.find_peer())
            parameters = msgspec.structs.replace(
                place, shared_memory_byte_size=array.nbytes, binary_data=None
            )
        elif default if place.binary_data is None else place.binary_data:
            parameters = TensorParameters(binary_data_size=array.nbytes)
            binary.append(array.reshape(-1).view(np.uint8).data)
        else:
            data = array.ravel().tolist()
        described.append(
            OutputTensor(
                name=output, datatype=datatype, shape=shape, parameters=parameters, data=data
            )
        )
    answer = InferResponse(model_name=name, model_version=version, id=message.id, outputs=described)
    return answer, binary


def encode_response(answer: InferResponse, binary: list[memoryview]) -> Response:
    """Return the answer to an inference request: JSON, and binary outputs behind."""
    text = msgspec.json.encode(answer)
    if not binary:
        return Response(200, (text,))
    text += b" " * (-len(text) % _ALIGNMENT)  # White space of JSON: tensors begin aligned.
    return Response(200, (text, *binary), BINARY, f"{JSON_LENGTH}: {len(text)}\r\n")
