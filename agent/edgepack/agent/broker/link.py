"""Link of the agent: publishes messages, and receives chunks for an update over the broker."""

from typing import Protocol

import msgspec

from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.messages import Message
from edgepack.wire.transfers import Need


class Publisher(Protocol):
    """Publisher of messages: the connection to the broker."""

    @property
    def is_connected(self) -> bool:
        """True if messages can be sent now."""

    @property
    def trouble(self) -> str:
        """Problem of the connection that needs a person; "" without a problem."""

    def look_after(self) -> None:
        """Make sure that the connection is kept up; called in every turn of the agent's loop."""

    @property
    def has_session(self) -> bool:
        """True if the controller gave a session: without a session the controller accepts only a
        greeting.
        """

    def accept_session(self, session: Session) -> bool:
        """Sign in this session from now on; return True if the session is new."""

    def publish(
        self,
        kind: topics.UpKind,
        *messages: Message,
        retain: bool = False,
        place: tuple[str, int] | None = None,
    ) -> int | None:
        """Publish messages, as a batch if their kind is signed, numbered like `BatchSigner.sign`.

        Returns:
            The id of the sent message, or None if nothing was sent.
        """

    def renew_certificate(self) -> None:
        """Show the certificate that lies in its file now, from the next connection on."""

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to the broadcast chunks of exactly these files, plain and coded."""

    def hears_coded(self, sha256: str) -> bool:
        """Return True if the broker said that coded chunks of that file come through."""


class NoBroker:
    """Publisher of a device without a fleet: nothing is sent, and nothing is received."""

    is_connected = has_session = False
    trouble = ""

    def start(self) -> None:
        """Do nothing: there is no connection."""

    def stop(self) -> None:
        """Do nothing: there is no connection."""

    def look_after(self) -> None:
        """Do nothing: there is no connection."""

    def accept_session(self, _session: Session) -> bool:
        """Return False: no controller gives a session."""
        return False

    def publish(
        self,
        _kind: topics.UpKind,
        *_messages: Message,
        retain: bool = False,
        place: tuple[str, int] | None = None,
    ) -> int | None:
        """Return None: nothing was sent."""
        return None

    def renew_certificate(self) -> None:
        """Do nothing: there is no connection."""

    def listen(self, _files: frozenset[str]) -> None:
        """Do nothing: no chunk comes."""

    def hears_coded(self, _sha256: str) -> bool:
        """Return False: no chunk comes."""
        return False


class BrokerLink:
    """The chunk source of an update that comes over the broker."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to these files and to no other."""
        self._publisher.listen(files)

    def ask(self, need: Need) -> None:
        """Publish the need; repeat the need after a reconnect if the broker is away."""
        files = tuple(
            file
            if not file.takes_coded or self._publisher.hears_coded(file.sha256)
            else msgspec.structs.replace(file, takes_coded=False)
            for file in need.files
        )
        self._publisher.publish("need", msgspec.structs.replace(need, files=files))
