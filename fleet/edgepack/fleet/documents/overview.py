"""The fleet's first page: what needs a person, how devices stand, what they run, what moves."""

import msgspec

from edgepack.fleet.documents.fleet import EventView
from edgepack.fleet.documents.rollouts import RolloutView


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that need a look for one and the same reason.

    Attributes:
        standing: `failing` or `warned`, see `DeviceFilter`.
        model: The model whose update failed; "" where the devices themselves warn.
        state: The life cycle state of that model; "" where the devices themselves warn.
        because: The reason, as the devices said it.
        devices: Ids of those among the devices that were looked at.
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
        version: The release's version, as devices say it; "" for devices of which none serves.
        digest: Its root digest; "" for devices of which none serves.
        devices: How many devices run it.
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
        enrolled: All of them.
        online: Those that are connected to the broker.
        behind: Those that have not heard their newest orders, or are still carrying them out.
        failing: Those whose last update of a model failed.
        warned: Those that warn of something, and are not failing.
        unheard: Those that never reported.
    """

    enrolled: int = 0
    online: int = 0
    behind: int = 0
    failing: int = 0
    warned: int = 0
    unheard: int = 0


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet as it stands now.

    Attributes:
        counts: Devices by how they stand.
        trouble: Some of the devices that are failing or warn, by their reason: the most first.
        releases: What devices run, by model and then the most frequent first; the rare ones of
            many are left out.
        stopped: Rollouts that a person has to look at, the newest first: paused ones, those whose
            next wave waits for a person, and those that a gate ended.
        running: Rollouts under way, the newest first.
        events: What happened last to rollouts, the newest first.
    """

    counts: DeviceCounts
    trouble: tuple[Trouble, ...] = ()
    releases: tuple[ReleaseShare, ...] = ()
    stopped: tuple[RolloutView, ...] = ()
    running: tuple[RolloutView, ...] = ()
    events: tuple[EventView, ...] = ()
