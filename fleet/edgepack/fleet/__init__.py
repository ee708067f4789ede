"""The host's side of a fleet: `FleetClient` asks a running one, `edgepack fleet serve` runs one.

What stands in `__all__` is what programs may rely on. Each name is loaded when it is first used, so
that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgepack.fleet.client.fleet_client import FleetClient
    from edgepack.fleet.documents.devices import DeviceView, EnrolledDevice
    from edgepack.fleet.documents.fleet import EventView, FleetInfo
    from edgepack.fleet.documents.releases import ReleaseView
    from edgepack.fleet.documents.rollouts import (
        AssignmentView,
        LatencyView,
        RolloutSettings,
        RolloutView,
        Selector,
    )

_MODULES = {
    "AssignmentView": "edgepack.fleet.documents.rollouts",
    "DeviceView": "edgepack.fleet.documents.devices",
    "EnrolledDevice": "edgepack.fleet.documents.devices",
    "EventView": "edgepack.fleet.documents.fleet",
    "FleetClient": "edgepack.fleet.client.fleet_client",
    "FleetInfo": "edgepack.fleet.documents.fleet",
    "LatencyView": "edgepack.fleet.documents.rollouts",
    "ReleaseView": "edgepack.fleet.documents.releases",
    "RolloutSettings": "edgepack.fleet.documents.rollouts",
    "RolloutView": "edgepack.fleet.documents.rollouts",
    "Selector": "edgepack.fleet.documents.rollouts",
}
__all__ = [
    "AssignmentView",
    "DeviceView",
    "EnrolledDevice",
    "EventView",
    "FleetClient",
    "FleetInfo",
    "LatencyView",
    "ReleaseView",
    "RolloutSettings",
    "RolloutView",
    "Selector",
]


if not TYPE_CHECKING:  # a checker must see that a misspelt name is none

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
