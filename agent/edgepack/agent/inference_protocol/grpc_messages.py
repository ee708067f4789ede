"""Messages of the protocol's gRPC service, built from a table; needs the extra `grpc`.

The table has the fields of each message in the order of their numbers, from 1 on. No code made by
a compiler is needed, which would be bound to versions of the package protobuf.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
RAW_INPUTS, RAW_OUTPUTS = 7, 6
"""Numbers of the fields with the bytes of tensors, in requests and in responses."""

_NAMED = ("string name", "string version")
_PLACED = ("string name", "string key", "uint64 offset", "uint64 byte_size")
_MESSAGES: dict[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready",),
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": ("bool ready",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("string name", "string version", "repeated string extensions"),
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": ("string name", "string datatype", "repeated int64 shape"),
    "ModelMetadataResponse": (
        *("string name", "repeated string versions", "string platform"),
        *("repeated TensorMetadata inputs", "repeated TensorMetadata outputs"),
    ),
    "InferParameter": (
        *("oneof bool bool_param", "oneof int64 int64_param", "oneof string string_param"),
        *("oneof double double_param", "oneof uint64 uint64_param"),
    ),
    "InferTensorContents": (
        *("repeated bool bool_contents", "repeated int32 int_contents"),
        *("repeated int64 int64_contents", "repeated uint32 uint_contents"),
        *("repeated uint64 uint64_contents", "repeated float fp32_contents"),
        *("repeated double fp64_contents", "repeated bytes bytes_contents"),
    ),
    "InferTensor": (
        *("string name", "string datatype", "repeated int64 shape"),
        *("map InferParameter parameters", "InferTensorContents contents"),
    ),
    "RequestedOutput": ("string name", "map InferParameter parameters"),
    "ModelInferRequest": (
        *("string model_name", "string model_version", "string id"),
        *("map InferParameter parameters", "repeated InferTensor inputs"),
        *("repeated RequestedOutput outputs", "repeated bytes raw_input_contents"),
    ),
    "ModelInferResponse": (
        *("string model_name", "string model_version", "string id"),
        *("map InferParameter parameters", "repeated InferTensor outputs"),
        "repeated bytes raw_output_contents",
    ),
    "ModelStatisticsRequest": _NAMED,
    "StatisticDuration": ("uint64 count", "uint64 ns"),
    "InferStatistics": tuple(
        f"StatisticDuration {name}"
        for name in (
            *("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"),
            *("cache_hit", "cache_miss"),
        )
    ),
    "ModelStatistics": (
        *(*_NAMED, "uint64 last_inference", "uint64 inference_count", "uint64 execution_count"),
        "InferStatistics inference_stats",
    ),
    "ModelStatisticsResponse": ("repeated ModelStatistics model_stats",),
    "RepositoryIndexRequest": ("string repository_name", "bool ready"),
    "ModelIndex": (*_NAMED, "string state", "string reason"),
    "RepositoryIndexResponse": ("repeated ModelIndex models",),
    "SystemSharedMemoryStatusRequest": ("string name",),
    "RegionStatus": _PLACED,
    "SystemSharedMemoryStatusResponse": ("map RegionStatus regions",),
    "SystemSharedMemoryRegisterRequest": _PLACED,
    "SystemSharedMemoryRegisterResponse": (),
    "SystemSharedMemoryUnregisterRequest": ("string name",),
    "SystemSharedMemoryUnregisterResponse": (),
}
_VARINT, _BYTES, _SIZES = 0, 2, {1: 8, 5: 4}
"""Wire types: a number, bytes with their length, and types of a fixed size."""
_PACKAGE = SERVICE.partition(".")[0]
_Field = descriptor_pb2.FieldDescriptorProto


def _add_message(file: Any, name: str, fields: tuple[str, ...]) -> None:
    """Add a message of the table to a description of a file."""
    message = file.message_type.add(name=name)
    for number, text in enumerate(fields, 1):
        *words, kind, label = text.split()
        field = message.field.add(name=label, number=number, label=_Field.LABEL_OPTIONAL)
        if "map" in words:
            entry = message.nested_type.add(name=f"{label.title()}Entry")
            entry.options.map_entry = True
            for at, (part, of) in enumerate((("key", "string"), ("value", kind)), 1):
                _set_type(entry.field.add(name=part, number=at, label=_Field.LABEL_OPTIONAL), of)
            kind = f"{name}.{entry.name}"
        if words and words[0] in ("map", "repeated"):
            field.label = _Field.LABEL_REPEATED
        elif words:
            field.oneof_index = 0
            if not message.oneof_decl:
                message.oneof_decl.add(name="parameter_choice")
        _set_type(field, kind)


def _set_type(field: Any, kind: str) -> None:
    if kind[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")


def _make_classes() -> dict[str, Any]:
    """Return the classes of all messages by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="edgepack_inference.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        _add_message(file, name, fields)
    pool = descriptor_pool.DescriptorPool()  # Of its own: a program may load Triton's messages.
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


CLASSES = _make_classes()
"""Classes of the messages by name."""


def split_raw(content: bytes, number: int, limit: int) -> tuple[bytes, list[memoryview]]:
    """Return a message without its tensors, and the bytes of its tensors without a copy.

    Args:
        content: The message.
        number: Number of the field with the bytes of tensors.
        limit: Fields of the message, at most.

    Raises:
        ValueError: The message is malformed, or has more fields.
    """
    view, at = memoryview(content), 0
    kept: list[memoryview] = []
    raw: list[memoryview] = []
    for _ in range(limit):
        if at == len(content):
            return b"".join(kept), raw
        began = at
        tag, at = _read_varint(content, at)
        wire = tag & 7
        if wire == _VARINT:
            length, at = 0, _read_varint(content, at)[1]
        elif wire in _SIZES:
            length = _SIZES[wire]
        elif wire == _BYTES:
            length, at = _read_varint(content, at)
        else:
            raise ValueError(f"a field has wire type {wire}")
        if at + length > len(content):
            raise ValueError("a field ends behind the end of the message")
        at += length
        if tag == number << 3 | _BYTES:
            raw.append(view[at - length : at])
        else:
            kept.append(view[began:at])
    raise ValueError(f"the message has more than {limit} fields")


def join_raw(content: bytes, number: int, raw: list[memoryview]) -> bytes:
    """Return a message with tensors."""
    parts: list[bytes | memoryview] = [content]
    for one in raw:
        parts += (_write_varint(number << 3 | _BYTES), _write_varint(len(one)), one)
    return b"".join(parts)


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the place behind the number.

    Raises:
        ValueError: There is none.
    """
    value = shift = 0
    for byte in content[at : at + 10]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number of the message is malformed")


def _write_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
