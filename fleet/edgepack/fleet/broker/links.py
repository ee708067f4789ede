"""Two MQTT connections of a controller among several: its own and the leader's.

Each leader connects with the same client id. The broker therefore closes the previous leader's
connection, and a hung controller cannot publish any more. If the broker supports sessions, the
leader's session stores messages of devices in the meantime. Only a controller with freshly verified
leadership opens the leader's connection; paho never reconnects the leader.
"""

from collections.abc import Callable

from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from edgepack.wire import topics

SESSION_S = 300
"""Lifetime of the leader's session at the broker while no controller leads, seconds."""
GROUP = "edgepack"
KEEPALIVE_S = 10
"""Keepalive of a controller's own connection; a hung controller receives telemetry until then."""


class Links:
    """Publisher for the leader, and subscriber to the telemetry that all controllers share.

    Args:
        own: The controller's own connection; open.
        access: Returns the broker access for a client id.
        leader_client_id: Returns the leader's client id, known once this controller leads.
        tenant: Tenant of the devices.
        on_message: Called with topic and payload, on paho's threads.
        on_connected: Called on paho's thread when the leader's connection is open.
    """

    def __init__(
        self,
        own: Link,
        *,
        access: Callable[[str], BrokerAccess],
        leader_client_id: Callable[[], str],
        tenant: str,
        on_message: Callable[[str, bytes], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._own, self._access, self._leader_client_id = own, access, leader_client_id
        self._tenant = tenant
        self._on_message, self._on_connected = on_message, on_connected
        self._leading: Link | None = None
        self._share = f"$share/{GROUP}/{topics.up(tenant, '+', 'telemetry')}"
        self._is_sharing = False
        self.look_after()

    @property
    def can_publish(self) -> bool:
        """True while the leader's connection is open."""
        return self._leading is not None and self._leading.is_connected

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1; drop the message without the leader's connection (the leader sends
        again later).
        """
        if self._leading is not None:
            self._leading.publish_retained(topic, payload)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message that is not retained."""
        if self._leading is not None:
            self._leading.publish(topic, payload)

    def acknowledge(self, topic: str, payload: bytes) -> None:
        """Publish over the controller's own connection, whether this controller leads or not."""
        self._own.publish(topic, payload)

    def lead(self) -> None:
        """Open the leader's connection unless open. Call only after leadership was verified.

        Raises:
            TransferError: The broker cannot be reached, or rejects the connection.
        """
        if self.can_publish:
            return
        self.follow()
        leader_client_id = self._leader_client_id()
        kinds = [
            kind for kind in topics.UP_KINDS if kind != "telemetry" or not self._own.has_shared
        ]
        link = Link(
            self._access(leader_client_id),
            client_id=leader_client_id,
            subscriptions=[topics.up(self._tenant, "+", kind) for kind in kinds],
            trial=topics.desired(self._tenant, leader_client_id),
            on_message=self._on_message,
            on_connected=self._on_connected,
            lasting=SESSION_S,
        )
        link.open()
        self._leading = link

    def follow(self) -> None:
        """Close the leader's connection."""
        if self._leading is not None:
            self._leading.close()
            self._leading = None

    def look_after(self) -> None:
        """Restart paho's thread of the controller's own connection if the thread has ended.

        Takes its share of the telemetry: anyone that calls this goes round.
        """
        self._own.look_after()
        if self._own.has_shared and not self._is_sharing:
            self._own.subscribe(self._share)
            self._is_sharing = True

    def leave_share(self) -> None:
        """Leave telemetry to the other controllers until the next `look_after`."""
        if self._is_sharing:
            self._own.unsubscribe(self._share)
            self._is_sharing = False
