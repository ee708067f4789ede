"""Complaints about a connection: logged once, and repeated at intervals instead of at every
attempt.
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable

from edgepack.agent.broker.silence import ANSWER_S
from edgepack.web.clock import describe_invalid_time

log = logging.getLogger(__name__)

REPEAT_S = 60.0
_NOT_TRUSTED = (18, 19, 20, 21)
"""Of OpenSSL: the certificate or its authority is self-signed, or the authority is not known."""
SILENT = "it takes connections and does not answer"


class Complaints:
    """Complaints about one broker.

    Args:
        title: Address of the broker.
        note: Gets each complaint that is made.
    """

    def __init__(self, title: str, note: Callable[[str], None] = lambda _because: None) -> None:
        self._title, self._note = title, note
        self._said, self._said_at = "", 0.0
        self._waiting = threading.Timer(ANSWER_S, self.say, (SILENT,))
        self._waiting.daemon = True

    def await_answer(self) -> None:
        """Log a complaint about silence unless the broker answers soon after the start."""
        self._waiting.start()

    def forget(self) -> None:
        """Forget the complaint: the connection works, or was closed."""
        self._waiting.cancel()
        self._said = ""

    def say(self, because: str, explain: Callable[[], str] | None = None) -> None:
        """Log a complaint, at most once per interval.

        Args:
            because: Observed problem.
            explain: Finds the cause, "" if unknown; called only if the complaint is logged.
        """
        self._waiting.cancel()
        # One cause may show in several ways, from one attempt to the next.
        sign = "no answer" if explain else because
        now = time.monotonic()
        if sign == self._said and now - self._said_at < REPEAT_S:
            return
        self._said, self._said_at = sign, now
        cause = explain() if explain else ""
        self._note(cause or because)
        log.warning("broker %s: %s; trying on", self._title, cause or because)


def describe_failure(error: BaseException | None) -> str:
    """Return why the broker was not reached, with the remedy where one is known."""
    if invalid := describe_invalid_time(error, time.time()):
        return invalid
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _NOT_TRUSTED:
        return (
            f"its certificate is not trusted ({error.verify_message}): "
            "ca_file in [broker] names its authority"
        )
    if isinstance(error, TimeoutError) and "handshake" in str(error):
        return SILENT
    return str(error or "") or "unknown reason"
