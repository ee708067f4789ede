"""Inference requests and responses of gRPC, as messages that REST has, too."""

from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from edgepack.agent.inference_protocol.grpc_messages import (
    CLASSES,
    RAW_INPUTS,
    RAW_OUTPUTS,
    join_raw,
    split_raw,
)
from edgepack.agent.inference_protocol.messages import (
    MAX_JSON_BYTES,
    MAX_TENSORS,
    InferRequest,
    InferResponse,
    InputTensor,
    RequestedOutput,
    RequestParameters,
    TensorParameters,
)
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.decoding import convert_value

MAX_FIELDS = 4 * MAX_TENSORS
"""Fields of a request: inputs, their bytes, outputs, and parameters."""
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def parse_message(name: str, content: bytes) -> Any:
    """Return a message.

    Raises:
        HttpError: The message is malformed.
    """
    try:
        return CLASSES[name].FromString(content)
    except DecodeError as error:
        raise HttpError(400, f"the message {name} is malformed: {error}") from error


def read_request(content: bytes) -> tuple[Any, InferRequest, list[memoryview]]:
    """Return an inference request: its message, in the form of REST, and the bytes of its inputs.

    Args:
        content: A ModelInferRequest.

    Raises:
        HttpError: The request is malformed.
    """
    try:
        content, raw = split_raw(content, RAW_INPUTS, MAX_FIELDS)
    except ValueError as error:
        raise HttpError(400, f"the message ModelInferRequest is malformed: {error}") from error
    if len(content) > MAX_JSON_BYTES:
        raise HttpError(
            413, f"the request has more than {MAX_JSON_BYTES} bytes beside raw_input_contents"
        )
    message = parse_message("ModelInferRequest", content)
    left = iter(raw)
    try:
        inputs = [_read_input(one, left if raw else None) for one in message.inputs]
        outputs = [
            RequestedOutput(name=one.name, parameters=_read(one.parameters, TensorParameters))
            for one in message.outputs
        ]
        parameters = _read(message.parameters, RequestParameters)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"a parameter of the request is malformed: {error}") from error
    if more := len(list(left)):
        raise HttpError(400, f"raw_input_contents has {more} tensors that belong to no input")
    parameters = msgspec.structs.replace(parameters, binary_data_output=True)
    request = InferRequest(inputs=inputs, id=message.id, parameters=parameters, outputs=outputs)
    return message, request, raw


def _read_input(tensor: Any, raw: Any) -> InputTensor:
    """Return an input in the form of REST.

    Args:
        tensor: The input.
        raw: Iterates over bytes of inputs that are not in shared memory; None if all inputs have
            values.

    Raises:
        HttpError: The input has bytes and values, or none.
    """
    place, data = _read(tensor.parameters, TensorParameters), None
    if not place.shared_memory_region:
        if raw is not None:
            content = next(raw, None)
            if content is None or tensor.HasField("contents"):
                raise HttpError(
                    400, f"input {tensor.name[:100]!a} has no entry of raw_input_contents, or both"
                )
            place = msgspec.structs.replace(place, binary_data_size=len(content))
        elif tensor.HasField("contents") and tensor.datatype in _CONTENTS:
            data = list(getattr(tensor.contents, _CONTENTS[tensor.datatype]))
    return InputTensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=list(tensor.shape),
        parameters=place,
        data=data,
    )


def _read(parameters: Mapping[str, Any], kind: type[Any]) -> Any:
    """Return the parameters that the server has; those of REST's binary tensors have no meaning.

    Raises:
        msgspec.ValidationError: A parameter is of another type.
    """
    if not parameters:
        return kind()
    names = [one for one in kind.__struct_fields__ if one in parameters and "binary" not in one]
    values = {}
    for name in names:
        choice = parameters[name].WhichOneof("parameter_choice")
        values[name] = getattr(parameters[name], choice) if choice else None
    return convert_value(values, kind)


def encode_response(answer: InferResponse, binary: list[memoryview]) -> Response:
    """Return the answer to an inference request, as a ModelInferResponse."""
    message = CLASSES["ModelInferResponse"](
        model_name=answer.model_name, model_version=answer.model_version, id=answer.id
    )
    left, raw = iter(binary), []
    for output in answer.outputs:
        place = output.parameters
        tensor = message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if place is not None and place.shared_memory_region:
            parameters = tensor.parameters
            parameters["shared_memory_region"].string_param = place.shared_memory_region
            parameters["shared_memory_offset"].int64_param = place.shared_memory_offset
            parameters["shared_memory_byte_size"].int64_param = place.shared_memory_byte_size
            raw.append(memoryview(b""))
        else:
            raw.append(next(left))
    return Response(200, (join_raw(message.SerializeToString(), RAW_OUTPUTS, raw),))
