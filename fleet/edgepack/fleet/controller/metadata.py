"""Keeps the image repository's metadata fresh, and publishes the metadata to devices."""

import logging
from collections.abc import Callable

from edgepack.errors import EdgepackError
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.roles import ROOT, read_file_name
from edgepack.wire import topics
from edgepack.wire.reports import Trusted

log = logging.getLogger(__name__)

ANSWER_AGAIN_AFTER_S = 10.0
"""A device that keeps lacking metadata is sent it so often at most."""
MAX_ANSWERED = 100_000
"""Devices of which it is known when they were sent something."""
LOOK_S = 60.0
"""How often it is looked at whether something must be signed anew."""


class MetadataKeeper:
    """Signs online metadata again before its expiry, and publishes changes.

    Args:
        repository: The fleet's.
        tenant: Tenant of the devices.
        publish: Publishes a retained message; never waits.
        send: Publishes a message that is not retained; never waits.
    """

    def __init__(
        self,
        repository: ImageRepository,
        tenant: str,
        *,
        publish: Callable[[str, bytes], None],
        send: Callable[[str, bytes], None],
    ) -> None:
        self._repository, self._tenant = repository, tenant
        self._publish, self._send = publish, send
        self._versions = (0, 0)
        self._answered: dict[str, float] = {}
        self._looked_at = -LOOK_S
        self._stamp = 0
        self._told: dict[str, bytes] = {}

    def turn(self, now: float) -> None:
        """Do all due work; log a failure and try again.

        Args:
            now: Monotonic clock, seconds.
        """
        try:
            if now - self._looked_at >= LOOK_S:
                self._looked_at = now
                self._repository.renew()
            stamp = self._repository.files.stamp()
            if stamp != self._stamp:
                self._tell()
                self._stamp = stamp
        except (EdgepackError, OSError) as error:
            log.warning("the fleet's metadata cannot be looked after because=%s", error)

    def answer(self, device: str, trusted: Trusted, now: float) -> None:
        """Send a device its missing metadata, to this device alone.

        Args:
            device: The reporting device.
            trusted: Metadata versions that the device trusts.
            now: Monotonic clock, seconds.
        """
        newest = self._versions
        is_behind = (trusted.root, trusted.timestamp) != newest or not trusted.is_whole
        last = self._answered.get(device, -ANSWER_AGAIN_AFTER_S)
        if not is_behind or now - last < ANSWER_AGAIN_AFTER_S:
            return
        self._answered.pop(device, None)
        self._answered[device] = now
        while len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
        for name, content in self._told.items():
            role, version = read_file_name(name) or ("", None)
            if role != ROOT or (version or 0) > trusted.root:
                topic = topics.device_metadata(self._tenant, device, name)
                self._send(topic, content)

    def tell_again(self) -> None:
        """Publish all metadata again, because the broker may have lost retained messages."""
        self._stamp = 0
        self._told.clear()

    def _tell(self) -> None:
        messages = self._repository.messages()
        for name, content in messages.items():
            if self._told.get(name) != content:
                self._publish(topics.metadata(self._tenant, name), content)
        self._told = messages
        state = self._repository.state
        self._versions = (state.root.signed.version, state.timestamp.signed.version)
