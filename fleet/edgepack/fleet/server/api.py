"""The fleet's HTTP API: JSON, a bearer token, on the loopback interface by default."""

import logging
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.manifest import MAX_MANIFEST_BYTES
from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.database import inventory
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceRemoval,
    EnrollRequest,
    RevocationRequest,
)
from edgepack.fleet.documents.fleet import Refusal
from edgepack.fleet.documents.previews import PreviewRequest
from edgepack.fleet.documents.rollouts import RollbackRequest, RolloutRequest
from edgepack.fleet.server.fleet import Fleet

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
)


def make_app(fleet: Fleet, token: str) -> Starlette:
    """The application.

    Args:
        fleet: The running fleet.
        token: Bearer token that every request must carry.
    """

    async def info(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.info))

    async def devices(request: Request) -> Response:
        group = request.query_params.get("group", "")
        where = request.query_params.get("where", "")
        return _json(await run_in_threadpool(fleet.devices, group, where, *_page(request)))

    async def groups(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.groups))

    async def change(request: Request) -> Response:
        asked = await _read(request, DeviceChange)
        return _json(await run_in_threadpool(fleet.change_devices, asked))

    async def remove(request: Request) -> Response:
        asked = await _read(request, DeviceRemoval)
        return _json(await run_in_threadpool(fleet.remove_devices, asked))

    async def revocations(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.revocations))

    async def revoke(request: Request) -> Response:
        asked = await _read(request, RevocationRequest)
        return _json(await run_in_threadpool(fleet.revoke, asked))

    async def remove_release(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.remove_release, request.path_params["release"]))

    async def device(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.device, request.path_params["device"]))

    async def enroll(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.enroll, await _read(request, EnrollRequest)))

    async def releases(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.list_releases))

    async def upload(request: Request) -> Response:
        size = _number(request.headers.get("content-length", ""), "Content-Length")
        folder = await run_in_threadpool(fleet.room_for_upload, size)
        try:
            archive = folder / "upload.edgepack"
            await _receive(request, archive, size)
            return _json(await run_in_threadpool(fleet.add_release, archive))
        finally:
            await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)

    async def rollouts(_: Request) -> Response:
        return _json(await run_in_threadpool(fleet.list_rollouts))

    async def start(request: Request) -> Response:
        asked = await _read(request, RolloutRequest)
        return _json(await run_in_threadpool(fleet.start_rollout, asked))

    async def preview(request: Request) -> Response:
        asked = await _read(request, PreviewRequest, MAX_HEAD_BYTES)
        return _json(await run_in_threadpool(fleet.preview_rollout, asked))

    async def rollout(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.rollout, request.path_params["name"]))

    async def rollout_devices(request: Request) -> Response:
        name, state = request.path_params["name"], request.query_params.get("state", "")
        return _json(await run_in_threadpool(fleet.rollout_devices, name, state, *_page(request)))

    async def pause(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.pause, request.path_params["name"]))

    async def resume(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.resume, request.path_params["name"]))

    async def abort(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.abort, request.path_params["name"]))

    async def preview_rollback(request: Request) -> Response:
        asked = await _read(request, RollbackRequest)
        return _json(await run_in_threadpool(fleet.preview_rollback, asked))

    async def rollback(request: Request) -> Response:
        return _json(await run_in_threadpool(fleet.rollback, await _read(request, RollbackRequest)))

    async def events(request: Request) -> Response:
        after = _number(request.query_params.get("after", "0"), "after")
        limit = min(MAX_EVENTS, _number(request.query_params.get("limit", "100"), "limit"))
        return _json(await run_in_threadpool(fleet.events, after, limit))

    async def audit_log(request: Request) -> Response:
        limit = min(MAX_EVENTS, _number(request.query_params.get("limit", "100"), "limit"))
        return _json(await run_in_threadpool(fleet.audit_log, _wanted(request), limit))

    def route(path: str, endpoint: Endpoint, method: str) -> Route:
        return Route(path, _guarded(endpoint, token), methods=[method])

    return Starlette(
        routes=[
            route("/v1/info", info, "GET"),
            route("/v1/devices", devices, "GET"),
            route("/v1/devices", enroll, "POST"),
            route("/v1/devices/change", change, "POST"),
            route("/v1/devices/remove", remove, "POST"),
            route("/v1/devices/{device}", device, "GET"),
            route("/v1/groups", groups, "GET"),
            route("/v1/revocations", revocations, "GET"),
            route("/v1/revocations", revoke, "POST"),
            route("/v1/releases", releases, "GET"),
            route("/v1/releases", upload, "POST"),
            route("/v1/releases/{release}", remove_release, "DELETE"),
            route("/v1/rollouts", rollouts, "GET"),
            route("/v1/rollouts", start, "POST"),
            route("/v1/rollouts/preview", preview, "POST"),
            route("/v1/rollouts/{name}", rollout, "GET"),
            route("/v1/rollouts/{name}/devices", rollout_devices, "GET"),
            route("/v1/rollouts/{name}/pause", pause, "POST"),
            route("/v1/rollouts/{name}/resume", resume, "POST"),
            route("/v1/rollouts/{name}/abort", abort, "POST"),
            route("/v1/rollbacks", rollback, "POST"),
            route("/v1/rollbacks/preview", preview_rollback, "POST"),
            route("/v1/events", events, "GET"),
            route("/v1/audit", audit_log, "GET"),
        ]
    )


def _guarded(endpoint: Endpoint, token: str) -> Endpoint:
    expected = f"Bearer {token}".encode()

    async def guarded(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not secrets.compare_digest(given, expected):
            refusal = Refusal(
                problem="the fleet does not know this token",
                remedy="set EDGEPACK_FLEET_TOKEN, or --data to the folder that holds 'token'",
            )
            return _json(refusal, 401)
        try:
            return await endpoint(request)
        except EdgepackError as error:
            refusal = Refusal(problem=error.problem, found_in=error.found_in, remedy=error.remedy)
            return _json(refusal, 422)
        except ClientDisconnect:
            log.warning("path=%s broken off by the client", request.url.path)
            return Response(status_code=400)

    return guarded


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


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
