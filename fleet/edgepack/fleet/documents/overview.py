"""The fleet's start page: problems, states of devices, their releases and active rollouts."""

import msgspec

from edgepack.fleet.documents.fleet import EventView
from edgepack.fleet.documents.rollouts import RolloutView


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Devices with the same problem.

    Attributes:
        standing: `degraded`, `failing` or `warned`, see `DeviceFilter`.
        model: The model that is degraded or whose update failed; "" for a warning of the devices.
        state: `DEGRADED`, or the life cycle state of that model; "" where the devices themselves
            warn.
        because: The devices' reason.
        devices: Ids of affected devices among the examined devices.
    """

    standing: str
    model: str
    state: str
    because: str
    devices: tuple[str, ...]


class ReleaseShare(msgspec.Struct, frozen=True, kw_only=True):
    """Share of devices that run a release.

    Attributes:
        model: The model's name.
        version: The reported version of the release; "" while nothing serves.
        digest: Its root digest; "" for devices of which none serves.
        devices: Number of devices that run the release.
        share: 0..1 of the devices that have the model.
    """

    model: str
    version: str
    digest: str
    devices: int
    share: float


class DeviceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of devices by state.

    Attributes:
        enrolled: All enrolled devices.
        online: Devices connected to the broker.
        behind: Devices whose newest orders are not received or not carried out yet.
        degraded: Devices of which a model serves with a symptom, or another variant or release than
            wanted.
        symptoms: Degraded devices by the symptom of their first degraded model.
        failing: Devices whose last update of a model failed.
        warned: Devices that warn, and are not failing.
        unheard: Devices without a report.
    """

    enrolled: int = 0
    online: int = 0
    behind: int = 0
    degraded: int = 0
    failing: int = 0
    warned: int = 0
    unheard: int = 0
    symptoms: dict[str, int] = {}


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's current state.

    Attributes:
        counts: Devices by standing.
        trouble: Some of the devices that are degraded, fail or warn, by their reason: the most
            first.
        releases: Releases on devices, by model and then the most frequent first; without rare
            releases if there are many.
        stopped: Rollouts that need a person, newest first: paused, waiting for approval, or ended
            by a gate.
        running: Rollouts under way, the newest first.
        events: The last events of rollouts, newest first.
    """

    counts: DeviceCounts
    trouble: tuple[Trouble, ...] = ()
    releases: tuple[ReleaseShare, ...] = ()
    stopped: tuple[RolloutView, ...] = ()
    running: tuple[RolloutView, ...] = ()
    events: tuple[EventView, ...] = ()
