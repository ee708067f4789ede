"""The API's own description: OpenAPI 3.1, made from the types that it takes and gives.

A test holds the table below against the routes of `api.py`.
"""

import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from edgepack.bundle.feedback import Feedback
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.access import (
    LoginCode,
    NewToken,
    Role,
    TokenRequest,
    TokenView,
)
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceDetails,
    DeviceFilter,
    DeviceRemoval,
    DeviceView,
    Enrollment,
    EnrollRequest,
    GroupView,
    RemovedDevice,
    RevocationRequest,
    Revocations,
)
from edgepack.fleet.documents.fleet import EventView, FleetInfo, Refusal
from edgepack.fleet.documents.latency import LatencyQuestion, LatencyReport
from edgepack.fleet.documents.previews import PreviewRequest, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.releases import (
    MetadataBundle,
    PublishedMetadata,
    PublishingView,
    ReleaseView,
    SignedMetadata,
)
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    RollbackRequest,
    RolloutRequest,
    RolloutView,
)

ARCHIVE = "application/octet-stream"
_REFERENCE = "#/components/schemas/{name}"
_NUMBERS = frozenset({"limit", "before"})
_PAGE = ("after", "limit")


class Operation(msgspec.Struct, frozen=True):
    """One thing that the API does.

    Attributes:
        method, path: Where.
        says: What it does.
        gives: What it answers with.
        takes: What it is sent; `ARCHIVE` for a bundle, None for nothing.
        asks: What its query may name.
        counts: Whether `after` is a number.
        role: Who may.
    """

    method: str
    path: str
    says: str
    gives: Any
    takes: Any = None
    asks: tuple[str, ...] = ()
    counts: bool = False
    role: Role = "viewer"


_ROLLOUT = "/v1/rollouts/{name}"
OPERATIONS = (
    Operation("GET", "/v1/info", "The fleet at a glance.", FleetInfo),
    Operation(
        "GET",
        "/v1/devices",
        "A page of devices; an empty one is the last.",
        tuple[DeviceView, ...],
        asks=(*DeviceFilter.__struct_fields__, *_PAGE),
    ),
    Operation("POST", "/v1/devices", "Enrols a device.", Enrollment, EnrollRequest, role="admin"),
    Operation(
        "POST",
        "/v1/devices/change",
        "Moves devices and changes their labels.",
        tuple[DeviceView, ...],
        DeviceChange,
        role="admin",
    ),
    Operation(
        "POST",
        "/v1/devices/remove",
        "Takes devices out of the fleet.",
        tuple[RemovedDevice, ...],
        DeviceRemoval,
        role="admin",
    ),
    Operation("GET", "/v1/devices/{device}", "One device in full.", DeviceDetails),
    Operation("GET", "/v1/groups", "All groups.", tuple[GroupView, ...]),
    Operation("GET", "/v1/revocations", "The list of revoked certificates.", Revocations),
    Operation(
        "POST",
        "/v1/revocations",
        "Revokes a certificate.",
        Revocations,
        RevocationRequest,
        role="admin",
    ),
    Operation("GET", "/v1/releases", "All releases, the newest first.", tuple[ReleaseView, ...]),
    Operation("POST", "/v1/releases", "Publishes a bundle.", ReleaseView, ARCHIVE, role="operator"),
    Operation("DELETE", "/v1/releases/{release}", "Deletes a release.", ReleaseView, role="admin"),
    Operation(
        "POST",
        "/v1/releases/{release}/withdraw",
        "Lists a release no more.",
        ReleaseView,
        role="operator",
    ),
    Operation(
        "GET",
        "/v1/releases/{release}/publishing",
        "What it takes to list a release.",
        PublishingView,
    ),
    Operation("GET", "/v1/metadata", "The TUF metadata.", MetadataBundle),
    Operation(
        "POST",
        "/v1/metadata",
        "Publishes signed TUF metadata.",
        PublishedMetadata,
        SignedMetadata,
        role="operator",
    ),
    Operation("GET", "/v1/rollouts", "All rollouts, the newest first.", tuple[RolloutView, ...]),
    Operation(
        "POST", "/v1/rollouts", "Starts a rollout.", RolloutView, RolloutRequest, role="operator"
    ),
    Operation(
        "POST",
        "/v1/rollouts/preview",
        "What a rollout would mean.",
        RolloutPreview,
        PreviewRequest,
    ),
    Operation("GET", _ROLLOUT, "One rollout, with devices that need a look.", RolloutView),
    Operation(
        "GET",
        f"{_ROLLOUT}/devices",
        "A page of a rollout's devices; an empty one is the last.",
        tuple[AssignmentView, ...],
        asks=("state", *_PAGE),
    ),
    Operation("POST", f"{_ROLLOUT}/pause", "Offers nobody more.", RolloutView, role="operator"),
    Operation("POST", f"{_ROLLOUT}/resume", "Goes on.", RolloutView, role="operator"),
    Operation(
        "POST", f"{_ROLLOUT}/approve", "Lets the next wave begin.", RolloutView, role="operator"
    ),
    Operation("POST", f"{_ROLLOUT}/retry", "Tries the failed again.", RolloutView, role="operator"),
    Operation("POST", f"{_ROLLOUT}/abort", "Ends a rollout.", RolloutView, role="operator"),
    Operation(
        "POST",
        "/v1/rollbacks",
        "Takes a release back.",
        tuple[RolloutView, ...],
        RollbackRequest,
        role="operator",
    ),
    Operation(
        "POST",
        "/v1/rollbacks/preview",
        "What a rollback would mean.",
        RollbackPreview,
        RollbackRequest,
    ),
    Operation(
        "GET",
        "/v1/events",
        "What happened, oldest first.",
        tuple[EventView, ...],
        asks=_PAGE,
        counts=True,
    ),
    Operation(
        "GET",
        "/v1/audit",
        "What was done or decided, and by whom; the newest first.",
        tuple[AuditEntry, ...],
        asks=(*Wanted._fields, "limit"),
        counts=True,
    ),
    Operation("GET", "/v1/feedback/{model}", "What devices measured of a model.", Feedback),
    Operation(
        "GET",
        "/v1/latency",
        "Latency of real inferences.",
        LatencyReport,
        asks=LatencyQuestion.__struct_fields__,
    ),
    Operation("POST", "/v1/login-codes", "Opens the dashboard once.", LoginCode),
    Operation("GET", "/v1/tokens", "All tokens.", tuple[TokenView, ...], role="admin"),
    Operation("POST", "/v1/tokens", "Makes a token.", NewToken, TokenRequest, role="admin"),
    Operation("DELETE", "/v1/tokens/{name}", "Revokes a token.", TokenView, role="admin"),
)


@cache
def describe_api() -> bytes:
    """The description, as JSON."""
    kinds = {one.gives for one in OPERATIONS} | {Refusal}
    kinds |= {one.takes for one in OPERATIONS if one.takes not in (None, ARCHIVE)}
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
        "description": f"For the role `{one.role}` and those above it.",
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


_REFUSED = {
    "401": "nobody's token",
    "403": "another role",
    "404": "no such path",
    "405": "no such method",
    "422": "refused",
}


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
