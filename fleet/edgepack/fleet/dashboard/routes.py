"""The dashboard's pages, by path."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.acts import Acts
from edgepack.fleet.dashboard.device_pages import DevicePages
from edgepack.fleet.dashboard.guard import COOKIE, Visit, guarded
from edgepack.fleet.dashboard.live import Live
from edgepack.fleet.dashboard.login import Login
from edgepack.fleet.dashboard.model_pages import ModelPages
from edgepack.fleet.dashboard.render import ASSETS, asset, live_part, page
from edgepack.fleet.dashboard.rollout_pages import RolloutPages
from edgepack.fleet.oidc.settings import CALLBACK
from edgepack.fleet.server.access import Access
from edgepack.fleet.server.api import Pages
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.queries import FleetQueries

Show = Callable[[Visit], Mapping[str, Any]]
"""What a page shows; it may read the database, so it runs beside the server's loop."""
Act = Callable[[Visit], Response]


def dashboard_routes(
    fleet: Fleet, access: Access, *, is_tls: bool, is_stopping: Callable[[], bool]
) -> Pages:
    """Return the dashboard of a running fleet.

    Args:
        fleet: The fleet.
        access: Access control.
        is_tls: Whether browsers reach the dashboard by https alone.
        is_stopping: Whether the server is about to end.
    """
    live = Live(is_stopping)
    queries = FleetQueries(fleet)
    devices, models = DevicePages(queries), ModelPages(queries)
    rollouts, acts, login = RolloutPages(queries), Acts(queries), Login(access, is_tls=is_tls)

    def shown(path: str, template: str, show: Show, here: str, *, is_live: bool = True) -> Route:
        """Return a page; where a browser asks for events, its live part whenever that changed."""

        async def view(visit: Visit) -> Response:
            request = visit.request

            async def values() -> dict[str, Any]:
                found = await run_in_threadpool(show, visit)
                return {"who": visit.who, "here": here, "is_live": is_live, **found}

            async def part() -> str:
                return await run_in_threadpool(live_part, template, await values())

            async def holds() -> bool:
                cookie = request.cookies.get(COOKIE, "")
                return await run_in_threadpool(access.of_session, cookie) is not None

            if is_live and request.headers.get("accept") == "text/event-stream":
                key = f"{visit.actor.role} {request.url.path}?{request.url.query}"
                return live.stream(request, part, key=key, holds=holds)
            return page(template, **await values())

        return Route(path, guarded(access, view), methods=["GET"])

    def done(path: str, act: Act, method: str) -> Route:
        """Return a route that changes something, or asks for confirmation: for operators."""

        async def view(visit: Visit) -> Response:
            return await run_in_threadpool(act, visit)

        return Route(path, guarded(access, view, role="operator"), methods=[method])

    routes = [
        shown("/", "overview", devices.overview, "fleet"),
        shown("/devices", "devices", devices.list, "devices"),
        shown("/devices/{device}", "device", devices.one, "devices"),
        done("/devices/{device}/log", acts.request_log, "POST"),
        shown("/rollouts", "rollouts", rollouts.list, "rollouts"),
        done("/rollouts/new", acts.ask_start, "GET"),
        done("/rollouts/new", acts.start, "POST"),
        shown("/rollouts/{name}", "rollout", rollouts.one, "rollouts"),
        done("/rollouts/{name}/{act}", acts.ask, "GET"),
        done("/rollouts/{name}/{act}", acts.do, "POST"),
        shown("/models", "models", models.list, "models"),
        shown("/models/{model}", "model", models.one, "models"),
        shown("/releases/{digest}/report", "report", models.report_page, "models", is_live=False),
        Route("/releases/{digest}/report.html", guarded(access, _asked(models.report))),
        Route("/login", login.ask, methods=["GET"]),
        Route("/login", login.log_in, methods=["POST"]),
        Route("/login/oidc", login.go_to_provider, methods=["GET"]),
        Route(CALLBACK, login.come_back, methods=["GET"]),
        Route("/logout", guarded(access, login.log_out), methods=["POST"]),
        Route("/assets/{name}", _asset, methods=["GET"]),
    ]
    return Pages(routes, _missing)


def _asked(act: Act) -> Callable[[Visit], Awaitable[Response]]:
    async def view(visit: Visit) -> Response:
        return await run_in_threadpool(act, visit)

    return view


def _missing(request: Request) -> Response:
    error = FleetError(f"there is no page {request.url.path[:80]}")
    return page("problem", status=404, who=None, here="", error=error)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    return asset(name) if name in ASSETS else Response(status_code=404)
