"""The parts of a running fleet, for every operation."""

from typing import Protocol

import msgspec

from edgepack.bundle.trust import TrustPolicy
from edgepack.fleet.broker.link import Link
from edgepack.fleet.controller.controller import Controller
from edgepack.fleet.controller.inbox import Inbox
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.database.store import Store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.enrolment.authority import CERTIFICATE_DAYS
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.server.connections import Connections
from edgepack.fleet.server.expiries import Expiries
from edgepack.metrics.exporter import Exporter


class Warner(Protocol):
    """A part that may have something to warn of."""

    def warnings(self) -> tuple[str, ...]:
        """Return the component's problems, a sentence each."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a running fleet.

    Attributes:
        by: Actor for the audit log; `msgspec.structs.replace` gives the fleet as seen by another
            actor.
        certificate_days: How long the certificates last that devices get.
        warners: Background parts with warnings.
        expiries: Upcoming expiries.
        connections: Connections of the API's clients.
        exporter: Sends the metrics to a collector; None without one.
        device_sources: Bundle sources other than the broker, for newly enrolled devices.
    """

    by: str = "token"
    certificate_days: int = CERTIFICATE_DAYS
    device_sources: tuple[str, ...] = ()
    name: str
    tenant: str
    broker_url: str
    broker_is_tls: bool
    folder: DataFolder
    trust: TrustPolicy
    store: Store
    releases: ReleaseFolder
    warners: tuple[Warner, ...] = ()
    repository: ImageRepository
    inbox: Inbox
    link: Link
    depot: Depot
    controller: Controller
    connections: Connections
    expiries: Expiries
    exporter: Exporter | None = None
