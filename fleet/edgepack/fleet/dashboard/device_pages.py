"""Start page, list of devices, and page of a device."""

from typing import Any

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.guard import Visit
from edgepack.fleet.documents.devices import DeviceDetails, DeviceFilter
from edgepack.fleet.documents.rollouts import LatencySpan, LatencyView
from edgepack.fleet.server.queries import FleetQueries

PAGE = 50
MAX_GROUPS = 200
STANDINGS = {
    "": "any",
    "degraded": "degraded",
    "failing": "failing",
    "warned": "with a warning",
    "behind": "behind",
    "updating": "updating",
    "settled": "settled",
    "unheard": "never heard of",
}


class DevicePages:
    """Pages about devices."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries

    def overview(self, _: Visit) -> dict[str, Any]:
        """Return the first page."""
        return {"info": self._queries.fleet.info(), "fleet": self._queries.overview()}

    def list(self, visit: Visit) -> dict[str, Any]:
        """Return a page of devices, narrowed as the link asks."""
        names = DeviceFilter.__struct_fields__
        wanted = DeviceFilter(**{name: visit.asked(name).strip() for name in names})
        problem: FleetError | None = None
        try:
            found, count = self._queries.devices(wanted, visit.asked("after"), PAGE)
        except FleetError as error:  # An expression that makes no sense is corrected on the page.
            found, count, problem = (), 0, error
        asked = {name: getattr(wanted, name) for name in names}
        return {
            "wanted": wanted,
            "devices": found,
            "count": count,
            "problem": problem,
            "groups": self._queries.fleet.groups()[:MAX_GROUPS],
            "standings": STANDINGS,
            "asked": asked,
            "next": found[-1].device if len(found) == PAGE else "",
            "is_first": not visit.asked("after"),
        }

    def one(self, visit: Visit) -> dict[str, Any]:
        """Return a device in full."""
        device = self._queries.fleet.device(visit.path("device"))
        before = visit.asked("before")
        events = self._queries.events(
            device=device.device,
            before=int(before) if before.isdecimal() and len(before) < 16 else 0,
            limit=PAGE,
        )
        return {
            "device": device,
            "events": events,
            "older": events[-1].id if len(events) == PAGE else 0,
            "latency": self._latency(device),
            "log": self._queries.fleet.device_log(device.device)
            if visit.actor.may("operator")
            else None,
            "entries": self._queries.audit(device=device.device, limit=PAGE),
        }

    def _latency(
        self, device: DeviceDetails
    ) -> dict[str, tuple[tuple[LatencyView, ...], int, tuple[LatencySpan, ...]]]:
        """Return the latency of each serving model on devices of the same kind."""
        found = {}
        for model in device.models:
            if model.active is None or not device.hardware_class:
                continue
            digest = model.active.digest
            whole = self._queries.latency(digest, device.hardware_class)
            own = tuple(view for view in whole if view.variant == model.variant)
            length_s, spans = self._queries.latency_over_time(digest, device.hardware_class)
            found[model.name] = (own, length_s, spans)
        return found
