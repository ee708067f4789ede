"""The fleet's HTTP API: JSON, a bearer token, on the loopback interface by default."""

import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from edgepack.decoding import convert_value, decode_json
from edgepack.durable import disk_remedy, log_fault
from edgepack.errors import EdgepackError, FleetError, parse_problem
from edgepack.fleet.documents.access import Role
from edgepack.fleet.documents.fleet import Health, Refusal
from edgepack.fleet.identity.issue import NoTokenError
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.connections import note_known
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.metrics import render_metrics
from edgepack.fleet.server.openapi import describe_api
from edgepack.fleet.server.operations import (
    ARCHIVE,
    OF_ACCESS,
    OF_FLEET,
    Operation,
)
from edgepack.fleet.server.queries import FleetQueries
from edgepack.fleet.server.query import read_bearer, read_number
from edgepack.metrics.text import content_type
from edgepack.toml_errors import describe_type_error
from edgepack.trust.listing import read_target_path

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


class Pages(NamedTuple):
    """Pages served besides the API.

    Attributes:
        routes: The pages.
        missing: Answers where there is none.
    """

    routes: Sequence[BaseRoute]
    missing: Callable[[Request], Response]


def make_app(fleet: Fleet, access: Access, pages: Pages) -> Starlette:
    """Return the application.

    Args:
        fleet: The running fleet.
        access: Access control: every request of the API must carry a valid bearer token.
        pages: Pages served in addition to the API.
    """

    def acting(request: Request) -> Fleet:
        """Return the fleet with the actor of the request."""
        return msgspec.structs.replace(fleet, by=request.state.by)

    async def upload(request: Request) -> Response:
        size = read_number(request.headers.get("content-length", ""), "Content-Length")
        folder = await run_in_threadpool(fleet.room_for_upload, size)
        try:
            archive = folder / "upload.edgepack"
            await _receive(request, archive, size)
            source = request.query_params.get("source", "")
            return _json(await run_in_threadpool(acting(request).add_release, archive, source))
        finally:
            await run_in_threadpool(shutil.rmtree, folder, ignore_errors=True)

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

    async def description(_: Request) -> Response:
        return Response(describe_api(), media_type="application/json")

    async def healthz(_: Request) -> Response:
        """Return True if the fleet is up; public, so without details."""
        is_up = await run_in_threadpool(fleet.is_healthy)
        return _json(Health(healthy=is_up), 200 if is_up else 503)

    async def metrics(request: Request) -> Response:
        form = content_type(request.headers.get("accept", ""))
        content = await run_in_threadpool(render_metrics, FleetQueries(fleet), form)
        return Response(content, headers={"Content-Type": form})

    async def refused(request: Request, error: Exception) -> Response:
        """Return the response to a request that the framework rejects: unknown path or method."""
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

    async def broken_off(request: Request, _: Exception) -> Response:
        """Answer nobody: the client went away, or took too long, in the middle of a request."""
        log.debug("path=%s broken off by the client", request.url.path[:80])
        return Response(status_code=400)

    def route(one: Operation, of: Callable[[Request], object]) -> Route:
        endpoint = upload if one.takes == ARCHIVE else _doing(one, of)
        return Route(one.path, _guarded(endpoint, access, one.role), methods=[one.method])

    return Starlette(
        routes=[
            *(route(one, acting) for one in OF_FLEET),
            *(route(one, lambda _: access) for one in OF_ACCESS),
            Route("/v1/openapi.json", _guarded(description, access, "viewer"), methods=["GET"]),
            Route("/metrics", _guarded(metrics, access, "viewer"), methods=["GET"]),
            # For stock TUF clients, and devices without a broker: signed, and no secret.
            Route("/tuf/metadata/{file}", metadata, methods=["GET"]),
            Route("/tuf/targets/{model}/{file}", target, methods=["GET"]),
            Route("/healthz", healthz, methods=["GET"]),
            *pages.routes,
        ],
        exception_handlers={HTTPException: refused, ClientDisconnect: broken_off},
    )


def _methods(request: Request) -> set[str]:
    """Return the methods of a path's first matching route, over all of its routes."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    fits = (one.path for one in routes if one.matches(request.scope)[0] is not Match.NONE)
    path = next(fits, "")
    return {method for one in routes if one.path == path for method in one.methods or ()}


def _doing(one: Operation, of: Callable[[Request], object]) -> Endpoint:
    """Serve a row of the table."""

    async def doing(request: Request) -> Response:
        given = list(request.path_params.values())
        if one.takes is not None:
            given.append(await _read(request, one))
        given += one.reads(request)
        return _json(await run_in_threadpool(one.does, of(request), *given))

    return doing


def _guarded(endpoint: Endpoint, access: Access, role: Role | None) -> Endpoint:
    async def guarded(request: Request) -> Response:
        try:
            if role is None:
                request.state.by = ""
                return await endpoint(request)
            actor = await access.of_bearer(read_bearer(request))
            if actor is None:
                refusal = Refusal(
                    problem="the fleet does not know this token",
                    remedy="set EDGEPACK_FLEET_TOKEN, or --data to the folder that holds 'token'; "
                    "of another fleet, set EDGEPACK_FLEET_URL",
                )
                return _json(refusal, 401)
            if not actor.may(role):
                refusal = Refusal(
                    problem=f"{actor.name} is a {actor.role}, and this takes the role {role}",
                    remedy="ask with another token",
                )
                return _json(refusal, 403)
            request.state.by = actor.name
            note_known(request)
            return await endpoint(request)
        except EdgepackError as error:
            refusal = Refusal(problem=error.problem, found_in=error.found_in, remedy=error.remedy)
            return _json(refusal, 401 if isinstance(error, NoTokenError) else 422)
        except OSError as error:
            log_fault(log, f"path={request.url.path}", error)
            refusal = Refusal(
                problem=f"the fleet cannot keep it: {error.strerror or error}",
                found_in="the data folder",
                remedy=f"{disk_remedy(error)}, and see to it that it may be written",
            )
            return _json(refusal, 422)

    return guarded


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _file(content: bytes | None, media_type: str) -> Response:
    if content is None:
        return Response(status_code=404)
    return Response(content, media_type=media_type)


async def _read(request: Request, one: Operation) -> object:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > one.max_bytes:
            raise FleetError(f"the request is over {one.max_bytes} bytes")
    try:
        document = decode_json(bytes(body))
        return convert_value(document, one.takes)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, document, one.takes)
        raise FleetError(
            f"malformed request: {found.problem}", found_in=request.url.path, remedy=found.remedy
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise FleetError(
            f"malformed request: {parse_problem(error)}", found_in=request.url.path
        ) from error


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
