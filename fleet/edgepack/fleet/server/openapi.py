"""The API's own description: OpenAPI 3.1, made from the table of its operations."""

import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from edgepack.fleet.documents.fleet import Refusal
from edgepack.fleet.server.operations import ARCHIVE, OPERATIONS, Operation

_REFERENCE = "#/components/schemas/{name}"
_NUMBERS = frozenset({"limit", "before", "keep"})
_REFUSED = {
    "401": "nobody's token",
    "403": "another role",
    "404": "no such path",
    "405": "no such method",
    "422": "refused",
}


@cache
def describe_api() -> bytes:
    """Return the description, as JSON."""
    takes = [one.takes for one in OPERATIONS if one.takes not in (None, ARCHIVE)]
    kinds = dict.fromkeys([*(one.gives for one in OPERATIONS), *takes, Refusal])
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "edgepack fleet",
            "version": version("edgepack"),
            "description": "What people and programs can ask of a running fleet.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
            "responses": {
                "Refusal": {
                    "description": "Refused, and why.",
                    "content": {"application/json": {"schema": _schema(Refusal)}},
                }
            },
        },
    }
    return msgspec.json.encode(document)


def _operation(one: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _identifier(one),
        "summary": one.says,
        "description": f"For the role `{one.role}` and those above it."
        if one.role
        else "For devices: what they have to show is said above.",
        "parameters": [*_path_parameters(one), *_query_parameters(one)],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"application/json": {"schema": _schema(one.gives)}},
            },
            **{status: {"$ref": "#/components/responses/Refusal"} for status in _REFUSED},
        },
    }
    if one.takes == ARCHIVE:
        archive = {"schema": {"type": "string", "format": "binary"}}
        found["requestBody"] = {"required": True, "content": {ARCHIVE: archive}}
    elif one.takes is not None:
        document = {"schema": _schema(one.takes)}
        found["requestBody"] = {"required": True, "content": {"application/json": document}}
    return found


def _identifier(one: Operation) -> str:
    words = re.findall(r"[a-z]+", one.path.removeprefix("/v1"))
    return "_".join([one.method.lower(), *words])


def _path_parameters(one: Operation) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"{(\w+)}", one.path)
    ]


def _query_parameters(one: Operation) -> list[dict[str, Any]]:
    numbers = _NUMBERS | ({"after"} if one.counts else set())
    times = {"since", "until"}
    return [
        {
            "name": name,
            "in": "query",
            "schema": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
            if name in numbers
            else {"type": "number"}
            if name in times
            else {"type": "string"},
        }
        for name in one.asks
    ]


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    return schema
