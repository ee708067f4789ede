"""The two connections of one of several controllers: its own, and one of whoever leads.

Whoever leads opens the second one under the same client id, the voice. So the broker ends that of
the leader before at that moment: whatever a controller that hung had yet to say reaches nobody.
What devices said meanwhile waits in the voice's session, where the broker keeps one. Nothing opens
it anew by itself: only a controller that has just made sure that it leads does.
"""

from collections.abc import Callable

from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from edgepack.wire import topics

SESSION_S = 300
"""How long the broker keeps what devices say while nobody leads."""
GROUP = "edgepack"
KEEPALIVE_S = 10
"""Of a controller's own connection: what devices measure goes to one that hangs until it ends."""


class Links:
    """Publishes as the leader, and takes in telemetry with all other controllers.

    Args:
        own: The controller's own connection; open.
        access: Of the voice.
        voice: Its client id, which is known once this controller leads.
        tenant: Whose devices.
        on_message: Gets topic and payload, on paho's threads.
        on_connected: Called on paho's thread once the leader's connection is there.
    """

    def __init__(
        self,
        own: Link,
        *,
        access: Callable[[str], BrokerAccess],
        voice: Callable[[], str],
        tenant: str,
        on_message: Callable[[str, bytes], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._own, self._access, self._voice = own, access, voice
        self._tenant = tenant
        self._on_message, self._on_connected = on_message, on_connected
        self._leading: Link | None = None
        self._share = f"$share/{GROUP}/{topics.up(tenant, '+', 'telemetry')}"
        self._is_sharing = False
        self.look_after()

    @property
    def can_publish(self) -> bool:
        """Whether what a leader says goes out now."""
        return self._leading is not None and self._leading.is_connected

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publishes at QoS 1; without the leader's connection it is lost, and told again later."""
        if self._leading is not None:
            self._leading.publish_retained(topic, payload)

    def publish(self, topic: str, payload: bytes) -> None:
        """The same for what nobody needs who comes later."""
        if self._leading is not None:
            self._leading.publish(topic, payload)

    def lead(self) -> None:
        """Opens the leader's connection if it is not there; for one that just made sure to lead.

        Raises:
            TransferError: The broker cannot be reached, or refuses.
        """
        if self.can_publish:
            return
        self.follow()
        voice = self._voice()
        kinds = [
            kind for kind in topics.UP_KINDS if kind != "telemetry" or not self._own.has_shared
        ]
        link = Link(
            self._access(voice),
            client_id=voice,
            subscriptions=[topics.up(self._tenant, "+", kind) for kind in kinds],
            trial=topics.desired(self._tenant, voice),
            on_message=self._on_message,
            on_connected=self._on_connected,
            lasting=SESSION_S,
        )
        link.open()
        self._leading = link

    def follow(self) -> None:
        """Ends the leader's connection."""
        if self._leading is not None:
            self._leading.close()
            self._leading = None

    def look_after(self) -> None:
        """Starts paho's thread of the controller's own connection again should it have ended.

        Takes its share of the telemetry: whoever calls this goes round.
        """
        self._own.look_after()
        if self._own.has_shared and not self._is_sharing:
            self._own.subscribe(self._share)
            self._is_sharing = True

    def leave_share(self) -> None:
        """Leaves telemetry to the other controllers, until this one is looked after again."""
        if self._is_sharing:
            self._own.unsubscribe(self._share)
            self._is_sharing = False
