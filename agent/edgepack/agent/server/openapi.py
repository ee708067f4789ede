"""Description of the server: OpenAPI 3.1, made from the table of operations."""

import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from edgepack.agent.inference_protocol.messages import JSON_LENGTH, ErrorAnswer, InferRequest
from edgepack.agent.inference_protocol.text_messages import (
    TextErrorAnswer,
    TextSettings,
    TranscriptionForm,
)
from edgepack.agent.server.http_messages import EVENTS, TEXT
from edgepack.agent.server.operations import OPERATIONS, TEXTS, Operation

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The request is malformed, or does not fit the model.",
    "403": "The client may not use the server or the region.",
    "404": "No such path, model, version or sequence.",
    "405": "No such method.",
    "413": "The request is too long.",
    "415": "The body is compressed.",
    "429": "The model's queue is full.",
    "500": "The provider failed.",
    "503": "The model does not serve.",
}


@cache
def describe_operations() -> bytes:
    """Return the description, as JSON."""
    kinds = [kind for one in OPERATIONS for kind in (one.gives, one.takes) if kind is not None]
    kinds = [kind for kind in kinds if kind is not bytes]
    errors = [ErrorAnswer, TextErrorAnswer]
    _, schemas = msgspec.json.schema_components([*errors, *kinds], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "edgepack model server",
            "version": version("edgepack"),
            "description": "The models of a device, by the Open Inference Protocol v2.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    return msgspec.json.encode(document)


def _operation(one: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {}, "application/openmetrics-text": {}}
    if one.gives is not None:
        content = {"application/json": {"schema": _schema(one.gives)}}
    if one.takes is InferRequest:
        content["application/octet-stream"] = {}
    is_text = isinstance(one.takes, type) and issubclass(one.takes, TextSettings)
    if is_text:
        content[EVENTS] = {}
    if one.takes is TranscriptionForm:
        content[TEXT] = {}
    fault = TextErrorAnswer if one.path.startswith(TEXTS) else ErrorAnswer
    error = {"application/json": {"schema": _schema(fault)}}
    found: dict[str, Any] = {
        "operationId": "_".join([one.method.lower(), *re.findall("[a-z]+", one.path)]),
        "summary": one.text,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", one.path)
        ],
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{status: {"description": text, "content": error} for status, text in _ERRORS.items()},
        },
    }
    if one.takes is bytes:
        found["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    elif one.takes is not None:
        kind = "multipart/form-data" if one.takes is TranscriptionForm else "application/json"
        document = {"schema": _schema(one.takes)}
        found["requestBody"] = {"required": True, "content": {kind: document}}
    if one.takes is InferRequest:
        found["requestBody"]["content"]["application/octet-stream"] = {}
        length = {"type": "integer", "minimum": 0}
        found["parameters"].append({"name": JSON_LENGTH, "in": "header", "schema": length})
    return found


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema
