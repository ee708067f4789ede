"""The fleet's HTTP API: JSON, a bearer token, on the loopback interface by default."""

import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.manifest import MAX_MANIFEST_BYTES
from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.database import inventory
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.access import Role, TokenRequest
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceFilter,
    DeviceRemoval,
    EnrollRequest,
    RevocationRequest,
)
from edgepack.fleet.documents.fleet import Health, Refusal
from edgepack.fleet.documents.latency import LatencyQuestion
from edgepack.fleet.documents.previews import PreviewRequest
from edgepack.fleet.documents.releases import SignedMetadata
from edgepack.fleet.documents.rollouts import RollbackRequest, RolloutRequest
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.looking import Looking
from edgepack.fleet.server.metrics import CONTENT_TYPE_LATEST, render_metrics
from edgepack.fleet.server.openapi import describe_api
from edgepack.trust.listing import read_target_path

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
MAX_HEAD_BYTES = MAX_BODY_BYTES + (MAX_MANIFEST_BYTES + MAX_SIGNATURE_BYTES) * 4 // 3
"""A request with a bundle's manifest and signature, in base64."""
MAX_EVENTS = 1000

Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar(
    "T",
    DeviceChange,
    DeviceRemoval,
    EnrollRequest,
    PreviewRequest,
    RevocationRequest,
    RollbackRequest,
    RolloutRequest,
    TokenRequest,
    SignedMetadata,
)


class Pages(NamedTuple):
    """What is served beside the API.

    Attributes:
        routes: The pages.
        missing: Answers where there is none.
    """

    routes: Sequence[BaseRoute]
    missing: Callable[[Request], Response]


def make_app(fleet: Fleet, access: Access, pages: Pages) -> Starlette:
    """The application.

    Args:
        fleet: The running fleet.
        access: Who is let in: every request of the API must carry the bearer token of somebody.
        pages: What is served beside the API.
    """

    def acting(request: Request) -> Fleet:
        """The fleet, told who asks."""
        return msgspec.structs.replace(fleet, by=request.state.by)

    async def info(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.info))

    async def devices(request: Request) -> Response:
        asked = {
            name: request.query_params.get(name, "") for name in DeviceFilter.__struct_fields__
        }
        wanted = DeviceFilter(**asked)
        return _json(await run_in_threadpool(fleet.devices, wanted, *_page(request)))

    async def groups(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.groups))

    async def change(request: Request) -> Response:
        asked = await _read(request, DeviceChange)
        return _json(await run_in_threadpool(acting(request).change_devices, asked))

    async def remove(request: Request) -> Response:
        asked = await _read(request, DeviceRemoval)
        return _json(await run_in_threadpool(acting(request).remove_devices, asked))

    async def revocations(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.revocations))

    async def revoke(request: Request) -> Response:
        asked = await _read(request, RevocationRequest)
        return _json(await run_in_threadpool(acting(request).revoke, asked))

    async def remove_release(request: Request) -> Response:
        return _json(
            await run_in_threadpool(acting(request).remove_release, request.path_params["release"])
        )

    async def device(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.device, request.path_params["device"]))

    async def enroll(request: Request) -> Response:
        return _json(
            await run_in_threadpool(acting(request).enroll, await _read(request, EnrollRequest))
        )

    async def releases(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.list_releases))

    async def upload(request: Request) -> Response:
        size = _number(request.headers.get("content-length", ""), "Content-Length")
        folder = await run_in_threadpool(fleet.room_for_upload, size)
        try:
            archive = folder / "upload.edgepack"
            await _receive(request, archive, size)
            return _json(await run_in_threadpool(acting(request).add_release, archive))
        finally:
            await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)

    async def withdraw(request: Request) -> Response:
        words = request.path_params["release"]
        return _json(await run_in_threadpool(acting(request).withdraw_release, words))

    async def publishing(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.publishing, request.path_params["release"]))

    async def take_metadata(request: Request) -> Response:
        asked = await _read(request, SignedMetadata)
        return _json(await run_in_threadpool(acting(request).take_metadata, asked))

    async def all_metadata(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.metadata))

    async def metadata(request: Request) -> Response:
        name = request.path_params["file"]
        content = await run_in_threadpool(fleet.repository.files.content, name)
        return _file(content, "application/json")

    async def target(request: Request) -> Response:
        # Stock clients put the target's hash before its name: here that is the name once more.
        digest = request.path_params["file"].rpartition(".")[2]
        if read_target_path(f"{request.path_params['model']}/{digest}") is None:
            return _file(None, "")
        content = await run_in_threadpool(fleet.target, digest)
        return _file(content, "application/octet-stream")

    async def rollouts(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.list_rollouts))

    async def start(request: Request) -> Response:
        asked = await _read(request, RolloutRequest)
        return _json(await run_in_threadpool(acting(request).start_rollout, asked))

    async def preview(request: Request) -> Response:
        asked = await _read(request, PreviewRequest, MAX_HEAD_BYTES)
        return _json(await run_in_threadpool(fleet.preview_rollout, asked))

    async def rollout(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.rollout, request.path_params["name"]))

    async def rollout_devices(request: Request) -> Response:
        name, state = request.path_params["name"], request.query_params.get("state", "")
        return _json(await run_in_threadpool(fleet.rollout_devices, name, state, *_page(request)))

    async def pause(request: Request) -> Response:
        return _json(await run_in_threadpool(acting(request).pause, request.path_params["name"]))

    async def resume(request: Request) -> Response:
        return _json(await run_in_threadpool(acting(request).resume, request.path_params["name"]))

    async def approve(request: Request) -> Response:
        return _json(await run_in_threadpool(acting(request).approve, request.path_params["name"]))

    async def retry(request: Request) -> Response:
        return _json(await run_in_threadpool(acting(request).retry, request.path_params["name"]))

    async def abort(request: Request) -> Response:
        return _json(await run_in_threadpool(acting(request).abort, request.path_params["name"]))

    async def preview_rollback(request: Request) -> Response:
        asked = await _read(request, RollbackRequest)
        return _json(await run_in_threadpool(fleet.preview_rollback, asked))

    async def rollback(request: Request) -> Response:
        return _json(
            await run_in_threadpool(acting(request).rollback, await _read(request, RollbackRequest))
        )

    async def events(request: Request) -> Response:
        after = _number(request.query_params.get("after", "0"), "after")
        limit = min(MAX_EVENTS, _number(request.query_params.get("limit", "100"), "limit"))
        return _json(await run_in_threadpool(fleet.events, after, limit))

    async def audit_log(request: Request) -> Response:
        limit = min(MAX_EVENTS, _number(request.query_params.get("limit", "100"), "limit"))
        return _json(await run_in_threadpool(fleet.audit_log, _wanted(request), limit))

    async def latency(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.latency, _question(request)))

    async def feedback(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.feedback, request.path_params["model"]))

    async def code(request: Request) -> Response:
        return _json(await run_in_threadpool(access.make_code, _bearer(request)))

    async def tokens(_: Request) -> Response:
        return _json(await run_in_threadpool(access.tokens))

    async def make_token(request: Request) -> Response:
        asked = await _read(request, TokenRequest)
        return _json(await run_in_threadpool(access.make_token, asked, request.state.by))

    async def revoke_token(request: Request) -> Response:
        name, by = request.path_params["name"], request.state.by
        return _json(await run_in_threadpool(access.revoke_token, name, by))

    async def description(_: Request) -> Response:
        return Response(describe_api(), media_type="application/json")

    async def healthz(_: Request) -> Response:
        """Whether the fleet is up; said to everybody, so it says no more."""
        is_up = await run_in_threadpool(fleet.is_healthy)
        return _json(Health(healthy=is_up), 200 if is_up else 503)

    async def metrics(_: Request) -> Response:
        content = await run_in_threadpool(render_metrics, Looking(fleet))
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def refused(request: Request, error: Exception) -> Response:
        """What the framework refuses: a path that is not there, a method that it does not take."""
        status, headers = 500, {}
        if isinstance(error, HTTPException):
            status, headers = error.status_code, dict(error.headers or {})
        if status == 404 and not request.url.path.startswith("/v1/"):
            return pages.missing(request)
        if status == 405:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        problem = f"{request.method} {request.url.path[:80]}: {HTTPStatus(status).phrase}"
        answer = _json(Refusal(problem=problem), status)
        answer.headers.update(headers)
        return answer

    def route(path: str, endpoint: Endpoint, method: str, role: Role = "viewer") -> Route:
        return Route(path, _guarded(endpoint, access, role), methods=[method])

    return Starlette(
        routes=[
            route("/v1/info", info, "GET"),
            route("/v1/devices", devices, "GET"),
            route("/v1/devices", enroll, "POST", "admin"),
            route("/v1/devices/change", change, "POST", "admin"),
            route("/v1/devices/remove", remove, "POST", "admin"),
            route("/v1/devices/{device}", device, "GET"),
            route("/v1/groups", groups, "GET"),
            route("/v1/revocations", revocations, "GET"),
            route("/v1/revocations", revoke, "POST", "admin"),
            route("/v1/releases", releases, "GET"),
            route("/v1/releases", upload, "POST", "operator"),
            route("/v1/releases/{release}", remove_release, "DELETE", "admin"),
            route("/v1/releases/{release}/withdraw", withdraw, "POST", "operator"),
            route("/v1/releases/{release}/publishing", publishing, "GET"),
            route("/v1/metadata", all_metadata, "GET"),
            route("/v1/metadata", take_metadata, "POST", "operator"),
            # For stock TUF clients, and devices without a broker: signed, and no secret.
            Route("/tuf/metadata/{file}", metadata, methods=["GET"]),
            Route("/tuf/targets/{model}/{file}", target, methods=["GET"]),
            route("/v1/rollouts", rollouts, "GET"),
            route("/v1/rollouts", start, "POST", "operator"),
            route("/v1/rollouts/preview", preview, "POST"),
            route("/v1/rollouts/{name}", rollout, "GET"),
            route("/v1/rollouts/{name}/devices", rollout_devices, "GET"),
            route("/v1/rollouts/{name}/pause", pause, "POST", "operator"),
            route("/v1/rollouts/{name}/resume", resume, "POST", "operator"),
            route("/v1/rollouts/{name}/approve", approve, "POST", "operator"),
            route("/v1/rollouts/{name}/retry", retry, "POST", "operator"),
            route("/v1/rollouts/{name}/abort", abort, "POST", "operator"),
            route("/v1/rollbacks", rollback, "POST", "operator"),
            route("/v1/rollbacks/preview", preview_rollback, "POST"),
            route("/v1/events", events, "GET"),
            route("/v1/audit", audit_log, "GET"),
            route("/v1/feedback/{model}", feedback, "GET"),
            route("/v1/login-codes", code, "POST"),
            route("/v1/latency", latency, "GET"),
            route("/v1/tokens", tokens, "GET", "admin"),
            route("/v1/tokens", make_token, "POST", "admin"),
            route("/v1/tokens/{name}", revoke_token, "DELETE", "admin"),
            route("/v1/openapi.json", description, "GET"),
            route("/metrics", metrics, "GET"),
            Route("/healthz", healthz, methods=["GET"]),
            *pages.routes,
        ],
        exception_handlers={HTTPException: refused},
    )


def _methods(request: Request) -> set[str]:
    """What a path takes: the first one that fits, over all of its routes."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    fits = (one.path for one in routes if one.matches(request.scope)[0] is not Match.NONE)
    path = next(fits, "")
    return {method for one in routes if one.path == path for method in one.methods or ()}


def _guarded(endpoint: Endpoint, access: Access, role: Role) -> Endpoint:
    async def guarded(request: Request) -> Response:
        try:
            actor = await run_in_threadpool(access.of_token, _bearer(request))
            if actor is None:
                refusal = Refusal(
                    problem="the fleet does not know this token",
                    remedy="set EDGEPACK_FLEET_TOKEN, or --data to the folder that holds 'token'",
                )
                return _json(refusal, 401)
            if not actor.may(role):
                refusal = Refusal(
                    problem=f"{actor.name} is a {actor.role}, and this takes the role {role}",
                    remedy="ask with another token",
                )
                return _json(refusal, 403)
            request.state.by = actor.name
            return await endpoint(request)
        except EdgepackError as error:
            refusal = Refusal(problem=error.problem, found_in=error.found_in, remedy=error.remedy)
            return _json(refusal, 422)
        except ClientDisconnect:
            log.warning("path=%s broken off by the client", request.url.path)
            return Response(status_code=400)

    return guarded


def _bearer(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _file(content: bytes | None, media_type: str) -> Response:
    if content is None:
        return Response(status_code=404)
    return Response(content, media_type=media_type)


async def _read(request: Request, kind: type[T], max_bytes: int = MAX_BODY_BYTES) -> T:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise FleetError(f"the request is over {max_bytes} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FleetError(f"malformed request: {error}", found_in=request.url.path) from error


async def _receive(request: Request, path: Path, size_bytes: int) -> None:
    received = 0
    try:
        with path.open("wb") as file:
            async for piece in request.stream():
                received += len(piece)
                if received > size_bytes:
                    raise FleetError(f"more than the {size_bytes} bytes came that were announced")
                await run_in_threadpool(file.write, piece)
    except OSError as error:
        raise FleetError(
            f"the upload cannot be kept: {error.strerror}", found_in=str(path.parent)
        ) from error


def _page(request: Request) -> tuple[str, int]:
    """Where a page begins, and how much it has at most."""
    asked = request.query_params
    limit = min(inventory.PAGE, _number(asked.get("limit", str(inventory.PAGE)), "limit"))
    return asked.get("after", ""), max(1, limit)


def _question(request: Request) -> LatencyQuestion:
    """Which latencies are asked for."""
    asked = dict(request.query_params)
    words = {name: asked.get(name, "") for name in ("model", "group", "where")}
    by = {"by": asked["by"].split(",") if asked["by"] else []} if "by" in asked else {}
    try:
        times = {
            name: msgspec.convert(asked[name], float, strict=False)
            for name in ("since", "until")
            if asked.get(name)
        }
        return msgspec.convert({**words, **times, **by}, LatencyQuestion, strict=False)
    except msgspec.ValidationError as error:
        raise FleetError(f"malformed question: {error}", found_in=request.url.path) from error


def _wanted(request: Request) -> Wanted:
    """Which entries of the audit log are asked for."""
    asked = request.query_params
    return Wanted(
        actor=asked.get("actor", ""),
        action=asked.get("action", ""),
        rollout=asked.get("rollout", ""),
        device=asked.get("device", ""),
        model=asked.get("model", ""),
        after=_number(asked.get("after", "0"), "after"),
        before=_number(asked.get("before", "0"), "before"),
    )


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise FleetError(f"{what} is no number: {text[:40]!r}")
    return int(text)
