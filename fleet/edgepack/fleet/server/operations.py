"""Operations of the API, a row each.

`api.py` serves each row, and `openapi.py` describes each row. Another operation is another row.
"""

from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request

from edgepack.agent.enrolment.asking import CertificateRequest
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.manifest import MAX_MANIFEST_BYTES
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.access import Role, TokenRequest
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceFilter,
    DeviceRemoval,
    EnrollRequest,
    RevocationRequest,
)
from edgepack.fleet.documents.latency import LatencyQuestion
from edgepack.fleet.documents.logs import LogRequest
from edgepack.fleet.documents.previews import PreviewRequest
from edgepack.fleet.documents.releases import SignedMetadata
from edgepack.fleet.documents.rollouts import RollbackRequest, RolloutRequest
from edgepack.fleet.documents.samples import CaptureRequest
from edgepack.fleet.documents.webhooks import WebhookRequest
from edgepack.fleet.server import query
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.fleet import Fleet

ARCHIVE = "application/octet-stream"
MAX_BODY_BYTES = 1024 * 1024
MAX_HEAD_BYTES = MAX_BODY_BYTES + (MAX_MANIFEST_BYTES + MAX_SIGNATURE_BYTES) * 4 // 3
"""A request with a bundle's manifest and signature, in base64."""
MAX_REQUEST_BYTES = 16 * 1024
"""A request for a certificate."""

_PAGE = ("after", "limit")
_ROLLOUT = "/v1/rollouts/{name}"


class Operation(msgspec.Struct, frozen=True):
    """Operation of the API.

    Attributes:
        method, path: Where.
        says: Text for the description.
        does: A method of `Fleet` or `Access`. The method gets the path's parameters, then the
            request's document, then the result of `reads`; its return type is the answer's.
        takes: The request's document; `ARCHIVE` for a bundle, None for none.
        asks: Names of query parameters.
        reads: Makes arguments of the request; may raise `FleetError`.
        counts: Whether `after` is a number.
        role: Required role; None if the operation itself checks access.
        max_bytes: Longest document.
    """

    method: str
    path: str
    says: str
    does: Callable[..., Any]
    takes: Any = None
    asks: tuple[str, ...] = ()
    reads: Callable[[Request], tuple[Any, ...]] = lambda _: ()
    counts: bool = False
    role: Role | None = "viewer"
    max_bytes: int = MAX_BODY_BYTES

    @property
    def gives(self) -> Any:
        """Type of the answer."""
        return get_type_hints(self.does)["return"]


OF_FLEET = (
    Operation("GET", "/v1/info", "The fleet at a glance.", Fleet.info),
    Operation(
        "GET",
        "/v1/devices",
        "A page of devices; an empty one is the last.",
        Fleet.devices,
        asks=(*DeviceFilter.__struct_fields__, *_PAGE),
        reads=query.devices,
    ),
    Operation("POST", "/v1/devices", "Enrols a device.", Fleet.enroll, EnrollRequest, role="admin"),
    Operation(
        "POST",
        "/v1/enrolments",
        "Gives a device its certificate, for the token in its package.",
        Fleet.issue_certificate,
        CertificateRequest,
        reads=query.bearer,
        role=None,
        max_bytes=MAX_REQUEST_BYTES,
    ),
    Operation(
        "POST",
        "/v1/devices/change",
        "Moves devices and changes their labels.",
        Fleet.change_devices,
        DeviceChange,
        role="admin",
    ),
    Operation(
        "POST",
        "/v1/devices/remove",
        "Takes devices out of the fleet.",
        Fleet.remove_devices,
        DeviceRemoval,
        role="admin",
    ),
    Operation("GET", "/v1/devices/{device}", "One device in full.", Fleet.device),
    Operation(
        "POST",
        "/v1/devices/{device}/log",
        "Asks a device for the last lines of its agent's log.",
        Fleet.request_log,
        LogRequest,
        role="operator",
    ),
    Operation(
        "GET",
        "/v1/devices/{device}/log",
        "The log lines of a device, by the last request.",
        Fleet.device_log,
        role="operator",
    ),
    Operation("GET", "/v1/groups", "All groups.", Fleet.groups),
    Operation("GET", "/v1/revocations", "The list of revoked certificates.", Fleet.revocations),
    Operation(
        "POST",
        "/v1/revocations",
        "Revokes a certificate.",
        Fleet.revoke,
        RevocationRequest,
        role="admin",
    ),
    Operation("GET", "/v1/releases", "All releases, the newest first.", Fleet.list_releases),
    Operation(
        "GET",
        "/v1/releases/unneeded",
        "Listed releases that nothing needs, but for the newest of each model.",
        Fleet.unneeded_releases,
        asks=("keep",),
        reads=query.keep,
    ),
    Operation(
        "POST",
        "/v1/releases",
        "Publishes a bundle.",
        Fleet.add_release,
        ARCHIVE,
        ("source",),
        role="operator",
    ),
    Operation(
        "DELETE",
        "/v1/releases/{release}",
        "Deletes a release.",
        Fleet.remove_release,
        role="admin",
    ),
    Operation(
        "POST",
        "/v1/releases/{release}/withdraw",
        "Lists a release no more.",
        Fleet.withdraw_release,
        role="operator",
    ),
    Operation(
        "GET",
        "/v1/releases/{release}/publishing",
        "What it takes to list a release.",
        Fleet.publishing,
    ),
    Operation("GET", "/v1/metadata", "The TUF metadata.", Fleet.metadata),
    Operation(
        "POST",
        "/v1/metadata",
        "Publishes signed TUF metadata.",
        Fleet.take_metadata,
        SignedMetadata,
        role="operator",
    ),
    Operation("GET", "/v1/rollouts", "All rollouts, the newest first.", Fleet.list_rollouts),
    Operation(
        "POST",
        "/v1/rollouts",
        "Starts a rollout.",
        Fleet.start_rollout,
        RolloutRequest,
        role="operator",
    ),
    Operation(
        "POST",
        "/v1/rollouts/preview",
        "What a rollout would mean.",
        Fleet.preview_rollout,
        PreviewRequest,
        max_bytes=MAX_HEAD_BYTES,
    ),
    Operation("GET", _ROLLOUT, "One rollout, with devices that need a look.", Fleet.rollout),
    Operation(
        "GET",
        f"{_ROLLOUT}/devices",
        "A page of a rollout's devices; an empty one is the last.",
        Fleet.rollout_devices,
        asks=("state", *_PAGE),
        reads=query.rollout_devices,
    ),
    Operation("POST", f"{_ROLLOUT}/pause", "Offers nobody more.", Fleet.pause, role="operator"),
    Operation("POST", f"{_ROLLOUT}/resume", "Goes on.", Fleet.resume, role="operator"),
    Operation(
        "POST",
        f"{_ROLLOUT}/approve",
        "Lets the next wave begin.",
        Fleet.approve,
        role="operator",
    ),
    Operation("POST", f"{_ROLLOUT}/retry", "Tries the failed again.", Fleet.retry, role="operator"),
    Operation("POST", f"{_ROLLOUT}/abort", "Ends a rollout.", Fleet.abort, role="operator"),
    Operation(
        "POST",
        "/v1/rollbacks",
        "Takes a release back.",
        Fleet.rollback,
        RollbackRequest,
        role="operator",
    ),
    Operation(
        "POST",
        "/v1/rollbacks/preview",
        "What a rollback would mean.",
        Fleet.preview_rollback,
        RollbackRequest,
    ),
    Operation(
        "GET",
        "/v1/events",
        "What happened, oldest first.",
        Fleet.events,
        asks=_PAGE,
        reads=query.events,
        counts=True,
    ),
    Operation(
        "GET",
        "/v1/audit",
        "What was done or decided, and by whom; the newest first.",
        Fleet.audit_log,
        asks=(*Wanted._fields, "limit"),
        reads=query.audit,
        counts=True,
    ),
    Operation("GET", "/v1/feedback/{model}", "What devices measured of a model.", Fleet.feedback),
    Operation(
        "GET",
        "/v1/latency",
        "Latency of real inferences.",
        Fleet.latency,
        asks=LatencyQuestion.__struct_fields__,
        reads=query.latency,
    ),
    Operation(
        "POST",
        "/v1/captures",
        "Asks devices for samples of a model.",
        Fleet.capture,
        CaptureRequest,
        role="operator",
    ),
    Operation(
        "GET",
        "/v1/captures",
        "The last requests for samples, the newest first.",
        Fleet.captures,
        asks=("model",),
        reads=query.model,
    ),
    Operation(
        "GET",
        "/v1/samples/{model}",
        "A page of a model's encrypted samples; an empty one is the last.",
        Fleet.samples,
        asks=_PAGE,
        reads=query.samples,
        role="operator",
    ),
    Operation(
        "GET",
        "/v1/samples/{model}/{device}/{sample}",
        "One encrypted sample.",
        Fleet.sample,
        role="operator",
    ),
    Operation(
        "DELETE",
        "/v1/samples/{model}",
        "Deletes a model's samples.",
        Fleet.remove_samples,
        role="operator",
    ),
    Operation("GET", "/v1/webhooks", "All webhooks.", Fleet.webhooks, role="admin"),
    Operation(
        "POST", "/v1/webhooks", "Makes a webhook.", Fleet.add_webhook, WebhookRequest, role="admin"
    ),
    Operation(
        "DELETE", "/v1/webhooks/{name}", "Ends a webhook.", Fleet.remove_webhook, role="admin"
    ),
    Operation(
        "POST",
        "/v1/webhooks/{name}/test",
        "Posts a message for a trial.",
        Fleet.try_webhook,
        role="admin",
    ),
)

OF_ACCESS = (
    Operation(
        "POST", "/v1/login-codes", "Opens the dashboard once.", Access.make_code, reads=query.bearer
    ),
    Operation("GET", "/v1/tokens", "All tokens.", Access.tokens, role="admin"),
    Operation(
        "POST",
        "/v1/tokens",
        "Makes a token.",
        Access.make_token,
        TokenRequest,
        reads=query.actor,
        role="admin",
    ),
    Operation(
        "DELETE",
        "/v1/tokens/{name}",
        "Revokes a token.",
        Access.revoke_token,
        reads=query.actor,
        role="admin",
    ),
)

OPERATIONS = (*OF_FLEET, *OF_ACCESS)
