"""Renewals of devices' certificates before expiry."""

import logging
from collections.abc import Callable, Mapping

from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.identity.issue import renew
from edgepack.wire.messages import encode
from edgepack.wire.orders import Certificate
from edgepack.wire.reports import Renewal

log = logging.getLogger(__name__)

ANSWER_AGAIN_AFTER_S = 30.0
"""A device that goes on asking is answered so often at most."""
MAX_ANSWERED = 100_000
"""Devices of which it is known when they were answered."""


class Renewals:
    """Answers requests for renewal.

    Args:
        open_authority: Opens the authority that signs certificates.
        note_refused: Called with the device and the reason, where a certificate is not renewed.
    """

    def __init__(
        self,
        open_authority: Callable[[], Authority],
        note_refused: Callable[[str, str], None],
    ) -> None:
        self._open_authority = open_authority
        self._note_refused = note_refused
        self._answered: dict[str, float] = {}

    def answer(
        self, session: Session, asking: Mapping[str, Renewal], now: float
    ) -> dict[str, bytes]:
        """Return the messages to send once the transaction is durable, by device.

        Args:
            session: The transaction.
            asking: Requests of devices, by id.
            now: Seconds since the epoch.
        """
        if not asking:
            return {}
        authority, messages = self._open_authority(), {}
        for device, asked in asking.items():
            if abs(now - self._answered.get(device, 0.0)) < ANSWER_AGAIN_AFTER_S:
                continue
            self._note(device, now)
            try:
                pem = renew(session, authority, device, asked, now)
            except FleetError as error:
                self._note_refused(device, error.problem)
                continue
            messages[device] = encode(Certificate(certificate=pem, authority=authority.pem))
        return messages

    def _note(self, device: str, now: float) -> None:
        self._answered.pop(device, None)
        self._answered[device] = now
        while len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]
