"""Detection of silence: does the broker answer this device, and if not, why. Pure.

A device with unheard messages looks, to itself, like a device without orders. The broker's
acknowledgement tells the two apart, and the controller answers the first report of every process.
"""

ANSWER_S = 5.0
"""From the connection until it is said that nothing comes back, at the next turn of the loop."""

NO_SUBSCRIBERS = 0x10
"""Of MQTT 5's PUBACK; brokers need not say it."""
FIRST_FAILURE = 0x80


class SilenceWatch:
    """Watches received answers, from each connection to the next.

    Args:
        tenant, device: Names from the settings.
    """

    def __init__(self, tenant: str, device: str) -> None:
        self._tenant, self._device = tenant, device
        self._judge_at: float | None = None
        self._reports: set[int] = set()
        self._code: int | None = None
        self._reason = ""
        self._is_answered = False

    def connected(self, now: float) -> None:
        """Note a new connection, and forget earlier sent messages."""
        self._judge_at = now + ANSWER_S
        self._reports.clear()
        self._code = None

    def sent_report(self, message_id: int | None) -> None:
        """Note a published report."""
        if message_id is not None and self._judge_at is not None:
            self._reports.add(message_id)

    def acknowledged(self, message_id: int, code: int, reason: str) -> None:
        """Note the broker's acknowledgement of a message, with its reason code."""
        if message_id in self._reports:
            self._code, self._reason = code, reason

    def answered(self) -> None:
        """Note a message of the controller to this device."""
        self._is_answered = True

    def finding(self, now: float) -> str:
        """Return why no answer arrives, once a connection; "" without a problem."""
        if self._judge_at is None:
            return ""
        is_refused = self._code is not None and self._code >= FIRST_FAILURE
        if now < self._judge_at and not is_refused:
            return ""
        self._judge_at = None
        self._reports.clear()
        return self._why(is_refused=is_refused)

    def _why(self, *, is_refused: bool) -> str:
        if is_refused:
            return (
                f"the broker takes no report of this device ({self._reason}): its user name or the "
                f"common name of its certificate must be '{self._device}', and the broker's access "
                f"rules must be for tenant '{self._tenant}'"
            )
        if self._code is None:
            return "the broker acknowledges nothing that this device says"
        if self._code == NO_SUBSCRIBERS:
            return (
                "nobody listens to what this device says: no controller is at this broker for "
                f"tenant '{self._tenant}' (edgepack fleet serve)"
            )
        if not self._is_answered:
            return (
                f"no controller answers this device: is '{self._device}' enrolled with this key in "
                f"tenant '{self._tenant}' (edgepack fleet devices show {self._device})?"
            )
        return ""
