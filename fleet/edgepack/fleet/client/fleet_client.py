"""`FleetClient`: requests and commands to a running fleet."""

from pathlib import Path
from urllib.parse import quote

from edgepack.bundle.feedback import Feedback
from edgepack.fleet.client.access import AccessMethods
from edgepack.fleet.client.connection import connect
from edgepack.fleet.client.devices import DeviceMethods
from edgepack.fleet.client.enrolment import EnrolmentMethods
from edgepack.fleet.client.latency import LatencyMethods
from edgepack.fleet.client.publishing import PublishingMethods
from edgepack.fleet.client.rollouts import RolloutMethods
from edgepack.fleet.client.samples import SampleMethods
from edgepack.fleet.client.webhooks import WebhookMethods
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.fleet import EventView, FleetInfo


# The last base comes first on the page of the Python API.
class FleetClient(
    RolloutMethods,
    PublishingMethods,
    LatencyMethods,
    EnrolmentMethods,
    DeviceMethods,
    AccessMethods,
    SampleMethods,
    WebhookMethods,
):
    """Client of a running fleet.

    The commands `edgepack fleet …` and `edgepack rollout …` use this class for every request. Every
    method sends a new request and waits for the answer (60 s at most, 15 min for an upload), so
    several threads can share a client.

    Args:
        url: Where the fleet serves. When not given: `EDGEPACK_FLEET_URL`, then
            `http://127.0.0.1:8600`.
        data: The fleet's folder with the token. When not given:
            `EDGEPACK_FLEET_DATA`, then `~/.local/share/edgepack/fleet`.
        token: The API's bearer token. When not given: `EDGEPACK_FLEET_TOKEN`, then the token in the
            fleet's folder.

    Raises:
        FleetError: The URL is none, or there is no token. Every method raises this error if the
            fleet is not reachable or rejects the request; the message states reason and remedy.

    Example:
        ```python
        from edgepack.fleet import FleetClient, RolloutSettings, Selector

        fleet = FleetClient()
        release = fleet.publish("model-1.2.0.edgepack")
        rollout = fleet.start_rollout(
            release, Selector(kind="group", group="cameras"), RolloutSettings(soak_s=2)
        )
        for rollout in fleet.watch_rollout(rollout.rollout):
            print(rollout.state, rollout.counts)
        ```
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        self._connection = connect(url, Path(data) if data is not None else None, token)

    def info(self) -> FleetInfo:
        """Return the fleet at a glance: devices, broker, message counters, bytes sent.

        Returns:
            The current numbers.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            info = fleet.info()
            print(f"{info.online} of {info.devices} devices are online")
            ```
        """
        return self._connection.get("/v1/info", FleetInfo)

    def feedback(self, model: str) -> Feedback:
        """Return the measurements of a model's variants, for its next build.

        Args:
            model: The model's name.

        Returns:
            By release (newest first), variant, provider and hardware class: devices that verified
            the variant, devices that serve the variant, and latency of real inferences.

        Raises:
            FleetError: The fleet has no release of that name, nobody serves there, or the token is
                wrong.

        Example:
            ```python
            for row in fleet.feedback("digits").evidence:
                print(row.variant, row.hardware_class, row.chosen, row.p95_ms)
            ```
        """
        return self._connection.get(f"/v1/feedback/{quote(model, safe='')}", Feedback)

    def events(self, *, after: int = 0, limit: int = 100) -> tuple[EventView, ...]:
        """Return events of devices and rollouts.

        Args:
            after: Only events with a greater id.
            limit: At most so many; the fleet gives 1,000 at most.

        Returns:
            The oldest first; the last one's id is the next `after`.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            for event in fleet.events(after=12):
                print(event.device, event.to_state, event.because)
            ```
        """
        return self._connection.get("/v1/events", tuple[EventView, ...], after=after, limit=limit)

    def audit(
        self,
        *,
        rollout: str = "",
        device: str = "",
        model: str = "",
        actor: str = "",
        action: str = "",
        before: int = 0,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[AuditEntry, ...]:
        """Return the audit log: actions on the fleet, with actor, reason and numbers.

        Args:
            rollout: Only actions on this rollout, such as `r1`; "" means all.
            device: Only actions on this device; "" means all.
            model: Only actions on rollouts and releases of this model; "" means all.
            actor: Only actions by this actor, such as `controller` or `gate`, matched by prefix; ""
                means all.
            action: Only this action, such as `rollout.breach` or `device`, matched by prefix; ""
                means all.
            before: Only entries with a smaller id, such as the last id of the previous page; 0 sets
                no bound.
            after: Only entries with a greater id.
            limit: At most so many; the fleet gives 1,000 at most.

        Returns:
            The newest first.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            for entry in fleet.audit(rollout="r1", action="rollout"):
                print(entry.actor, entry.action, entry.because, entry.numbers)
            ```
        """
        asked = {"rollout": rollout, "device": device, "model": model}
        asked |= {"actor": actor, "action": action}
        bounds = {"before": before, "after": after, "limit": limit}
        return self._connection.get("/v1/audit", tuple[AuditEntry, ...], **asked, **bounds)
