"""Query parameters of a request: bounded, and rejected if invalid.

Each function returns the arguments of an operation, for `Operation.reads`.
"""

import msgspec
from starlette.requests import Request

from edgepack.decoding import convert_value
from edgepack.errors import FleetError
from edgepack.fleet.database import inventory
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.devices import DeviceFilter
from edgepack.fleet.documents.latency import LatencyQuestion
from edgepack.fleet.documents.releases import KEPT_RELEASES

MAX_EVENTS = 1000


def read_bearer(request: Request) -> str:
    """Return a request's token; empty without a token."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def read_number(text: str, what: str) -> int:
    """Return a number of a request.

    Raises:
        FleetError: The text is not a number, or is far too long.
    """
    if not text.isdecimal() or len(text) > 15:
        raise FleetError(f"{what} is not a number: {text[:40]!r}")
    return int(text)


def bearer(request: Request) -> tuple[str]:
    """Return the request's token."""
    return (read_bearer(request),)


def actor(request: Request) -> tuple[str]:
    """Return the actor."""
    return (request.state.by,)


def _page(request: Request) -> tuple[str, int]:
    """Return the start of a page and its maximal length."""
    asked = request.query_params
    limit = min(inventory.PAGE, read_number(asked.get("limit", str(inventory.PAGE)), "limit"))
    return asked.get("after", ""), max(1, limit)


def devices(request: Request) -> tuple[DeviceFilter, str, int]:
    """Return the filter and the page of devices."""
    asked = {name: request.query_params.get(name, "") for name in DeviceFilter.__struct_fields__}
    return DeviceFilter(**asked), *_page(request)


def model(request: Request) -> tuple[str]:
    """Return the model's name; "" for all models."""
    return (request.query_params.get("model", ""),)


def samples(request: Request) -> tuple[str, int]:
    """Return the page."""
    return _page(request)


def rollout_devices(request: Request) -> tuple[str, str, int]:
    """Return the state and the page."""
    return request.query_params.get("state", ""), *_page(request)


def _limit(request: Request) -> int:
    return min(MAX_EVENTS, read_number(request.query_params.get("limit", "100"), "limit"))


def events(request: Request) -> tuple[int, int]:
    """Return after which event, and how many."""
    return read_number(request.query_params.get("after", "0"), "after"), _limit(request)


def audit(request: Request) -> tuple[Wanted, int]:
    """Return the filter and the number of audit entries."""
    asked = request.query_params
    wanted = Wanted(
        **{name: asked.get(name, "") for name in ("actor", "action", "rollout", "device", "model")},
        after=read_number(asked.get("after", "0"), "after"),
        before=read_number(asked.get("before", "0"), "before"),
    )
    return wanted, _limit(request)


def keep(request: Request) -> tuple[int]:
    """Return the number of releases to retain."""
    return (read_number(request.query_params.get("keep", str(KEPT_RELEASES)), "keep"),)


def latency(request: Request) -> tuple[LatencyQuestion]:
    """Return the question about latencies."""
    asked = dict(request.query_params)
    words = {name: asked.get(name, "") for name in ("model", "group", "where")}
    by = {"by": asked["by"].split(",") if asked["by"] else []} if "by" in asked else {}
    try:
        times = {
            name: convert_value(asked[name], float, strict=False)
            for name in ("since", "until")
            if asked.get(name)
        }
        return (convert_value({**words, **times, **by}, LatencyQuestion, strict=False),)
    except msgspec.ValidationError as error:
        raise FleetError(f"malformed question: {error}", found_in=request.url.path) from error
