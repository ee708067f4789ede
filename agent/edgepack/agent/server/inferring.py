"""Inference requests of the protocol: inputs from bytes, JSON or shared memory, and the answer."""

from collections.abc import Mapping
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
from edgepack.agent.server.regions import Regions
from edgepack.decoding import json_decoder

_LENGTH_FIELD = JSON_LENGTH.lower().encode()
_DECODER = json_decoder(InferRequest)
_ALIGNMENT = 64


class Decoded(NamedTuple):
    """Inference request with its inputs.

    Attributes:
        source: The request.
        message: Its message.
        feeds: Inputs by name.
    """

    source: Request
    message: InferRequest
    feeds: dict[str, Tensor]


def decode_request(request: Request, regions: Regions) -> Decoded:
    """Return an inference request with its inputs.

    Args:
        request: JSON, with or without binary tensors behind.
        regions: Regions of shared memory.

    Raises:
        HttpError: The request is malformed.
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
    try:
        message = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the JSON of the request is malformed: {error}") from error
    if len(message.inputs) > MAX_TENSORS or len(message.outputs) > MAX_TENSORS:
        raise HttpError(400, f"a request has at most {MAX_TENSORS} inputs and outputs")
    feeds: dict[str, Tensor] = {}
    at = 0
    try:
        for tensor in message.inputs:
            if tensor.name in feeds:
                raise HttpError(400, f"the request has input {tensor.name[:100]!a} twice")
            size = tensor.parameters.binary_data_size
            if size is not None:
                if size < 0 or at + size > len(binary):
                    raise HttpError(
                        400, f"input {tensor.name[:100]!a} ends behind the end of the body"
                    )
                dtype = dtype_of(tensor.name, tensor.datatype)
                content = binary[at : at + size]
                feeds[tensor.name] = read_binary(tensor.name, dtype, tensor.shape, content)
                at += size
            else:
                feeds[tensor.name] = _read(tensor, request, regions)
    except ValueError as error:
        raise HttpError(400, str(error)) from error
    if at != len(binary):
        raise HttpError(400, f"the body has {len(binary) - at} bytes that belong to no input")
    return Decoded(request, message, feeds)


def _read(tensor: InputTensor, request: Request, regions: Regions) -> Tensor:
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
        content = regions.read(place, request.find_peer())
        return read_binary(tensor.name, dtype, tensor.shape, content)
    if tensor.data is None:
        raise ValueError(f"input '{tensor.name[:100]}' has no data")
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


def encode_response(
    decoded: Decoded, outputs: Mapping[str, Tensor], name: str, version: str, regions: Regions
) -> Response:
    """Return the answer to an inference request.

    Args:
        decoded: The request.
        outputs: Outputs of the model.
        name, version: The model, and the release that ran.
        regions: Regions of shared memory, which may take outputs.

    Raises:
        HttpError: An output cannot be represented or written.
    """
    message = decoded.message
    default = message.parameters.binary_data_output
    wanted = [(one.name, one.parameters) for one in message.outputs]
    described: list[OutputTensor] = []
    binary: list[memoryview] = []
    has_binary = False
    for output, place in wanted or [(one, TensorParameters()) for one in outputs]:
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
            regions.write(place, content, decoded.source.find_peer())
            parameters = msgspec.structs.replace(
                place, shared_memory_byte_size=array.nbytes, binary_data=None
            )
        elif default if place.binary_data is None else place.binary_data:
            parameters = TensorParameters(binary_data_size=array.nbytes)
            has_binary = True
            if array.nbytes:
                binary.append(array.reshape(-1).view(np.uint8).data)
        else:
            data = array.ravel().tolist()
        described.append(
            OutputTensor(
                name=output, datatype=datatype, shape=shape, parameters=parameters, data=data
            )
        )
    answer = InferResponse(model_name=name, model_version=version, id=message.id, outputs=described)
    text = msgspec.json.encode(answer)
    if not has_binary:
        return Response(200, (text,))
    text += b" " * (-len(text) % _ALIGNMENT)  # White space of JSON: tensors begin aligned.
    return Response(200, (text, *binary), BINARY, f"{JSON_LENGTH}: {len(text)}\r\n")
