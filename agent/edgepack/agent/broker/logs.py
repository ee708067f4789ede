"""Lines of the agent's log for the fleet, on request.

1. The last lines stay in memory; nothing is written to the disk.
2. A signed request is answered, or refused, if the device's settings allow that.
3. Secrets are removed from each line, and the size of an answer is bounded.
4. The answer is repeated, less and less often, until the fleet has it or the request expires.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.text import printable
from edgepack.wire.orders import MAX_LOG_LINES, LogOrder
from edgepack.wire.transfers import LogLines

MAX_LINE = 500
MAX_BYTES = 64 * 1024
"""Bytes of an answer, at most; the oldest lines are left out."""
PAUSE_S = 10.0
"""Seconds between two answers, at least."""
RESEND_S = 30.0
"""Seconds until the first repetition; each further one waits twice as long."""
_NO_CONSENT = "the device's settings do not allow log lines ([logs] send)"
_HIDDEN = "***"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    # User and password of a URL, and its query, which may be a signature.
    (re.compile(r"(?<![\w+.-])(\w[\w+.-]*+://)[^\s'\"]*@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"(?<![\w+.-])(\w[\w+.-]*+://[^\s?'\"]*+)\?[^\s'\"]*"), rf"\1?{_HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {_HIDDEN}"),
    (re.compile(r"(?<![:\w])//[^\s/@'\":]*:[^\s/@'\"]*@"), f"//{_HIDDEN}@"),
    # All that follows a header of credentials; the value after an option.
    (
        re.compile(r"(?i)\b((?:set-)?cookie2?|(?:proxy-)?authorization)(\s*:\s*)\S.*"),
        rf"\1\2{_HIDDEN}",
    ),
    (
        re.compile(
            r"(?i)(?<!\S)(--?[\w-]*(?:passw\w*|passphrase|secret|token|pin|psk|pwd)\s+)[^\s-]\S*"
        ),
        rf"\1{_HIDDEN}",
    ),
    # A PKCS #11 URI has its PIN among attributes.
    (re.compile(r"(?i)(pin-(?:value|source)=)[^;&?\s'\"]*"), rf"\1{_HIDDEN}"),
    (re.compile(r".*-----(?:BEGIN|END) .*"), _HIDDEN),
    (re.compile(r"\A\s*[A-Za-z0-9+/]{40,}={0,2}\s*\Z"), _HIDDEN),  # A whole line of a PEM file.
    # JSON web tokens, and keys in base64. Digests are hexadecimal, and stay.
    (re.compile(r"(?<![\w-])eyJ[\w-]{5,}+(?:\.[\w-]+)*"), _HIDDEN),
    (re.compile(r"(?<![\w+-])(?=[\w+-]*[A-Z])(?=[\w+-]*[g-z])[\w+-]{40,}+={0,2}"), _HIDDEN),
    # Base64 with slashes. An absolute path begins with one, and a digit in a long path is rare.
    (
        re.compile(
            r"(?<![\w./+-])(?=[\w+/]*[A-Z])(?=[\w+/]*[g-z])(?=[\w+/]*\d)[A-Za-z0-9+][A-Za-z0-9+/]{42,}={0,2}"
        ),
        _HIDDEN,
    ),
)
_NAMED = re.compile(r"(?<![\w.-])([\w.-]++)(['\"]?\s*+[:=]\s*+)('[^']*'|\"[^\"]*\"|[^\s,;'\"]+)")
_SECRET_NAME = re.compile(
    r"(?i)passw|passphrase|secret|token|credential|api[._-]?key|private[._-]?key|authorization"
    r"|cookie|(?:^|[._-])(?:pass|pin|psk|pwd)(?:$|[._-])|(?-i:[a-z](?:Pass|Pin|Psk|Pwd)$)"
)


def redact(line: str) -> str:
    """Return a line without passwords, tokens, PINs, keys and credentials of URLs."""
    for pattern, shown in _SECRETS:
        line = pattern.sub(shown, line)
    return _NAMED.sub(_hide, line)


def _hide(found: re.Match[str]) -> str:
    """Hide a value whose name is that of a secret; a value may have names of its own."""
    name, sign, value = found.groups()
    return f"{name}{sign}{_HIDDEN if _SECRET_NAME.search(name) else _NAMED.sub(_hide, value)}"


def _cut(line: str) -> str:
    """Return a line of bounded length; a word that may be a part of a secret is left out."""
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 2].rpartition(' ')[0]} …"


class RecentLog(logging.Handler):
    """Last lines of this process's log, in memory."""

    def __init__(self) -> None:
        super().__init__()
        form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        form.converter = time.gmtime
        self.setFormatter(form)
        self._lines: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record; a traceback has several lines."""
        try:
            lines = self.format(record).splitlines()
        except Exception:  # noqa: BLE001 (as all handlers of the library: a log line ends nothing)
            self.handleError(record)
            return
        self._lines.extend(map(_cut, lines))

    def last(self, count: int) -> tuple[str, ...]:
        """Return the last lines, without secrets; the newest last."""
        self.acquire()
        try:
            lines = tuple(self._lines)[-count:]
        finally:
            self.release()
        return tuple(_cut(printable(redact(line))) for line in lines)


class LogSender:
    """Answers the fleet's request for log lines.

    Args:
        config: The agent's settings.
        recent: Returns that many of the last lines.
        wall, monotonic: Clocks, seconds.
    """

    def __init__(
        self,
        config: AgentConfig,
        recent: Callable[[int], tuple[str, ...]],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._recent = config, recent
        self._wall, self._monotonic = wall, monotonic
        self._order: LogOrder | None = None
        self._is_signed = False
        self._sent_at, self._due_at, self._pause_s = -math.inf, 0.0, RESEND_S

    def apply(self, config: AgentConfig) -> None:
        """Continue with reloaded settings."""
        self._config = config

    def take(self, order: LogOrder | None, *, is_signed: bool) -> None:
        """Note the fleet's request; None ends the request before.

        Args:
            order: The request.
            is_signed: Whether the director signed the request.
        """
        is_new = order is not None and (self._order is None or self._order.request != order.request)
        self._order, self._is_signed = order, is_signed
        if is_new:
            self._due_at, self._pause_s = self._sent_at + PAUSE_S, RESEND_S

    def turn(self) -> LogLines | None:
        """Return the answer if due."""
        order, now = self._order, self._monotonic()
        if order is None or now < self._due_at or self._wall() > order.expires_at:
            return None
        self._sent_at, self._due_at = now, now + self._pause_s
        self._pause_s *= 2
        if because := self._refusal():
            return LogLines(request=order.request, because=because)
        return _bounded(LogLines(request=order.request, lines=self._recent(order.lines)))

    def _refusal(self) -> str:
        """Return why the device sends no line; "" if the device does."""
        if not self._is_signed:
            return "the request is not signed: the device has no root of trust"
        return "" if self._config.logs.send else _NO_CONSENT


def _bounded(answer: LogLines) -> LogLines:
    """Return an answer without the oldest lines, if it is too long."""
    size_bytes, first = 0, len(answer.lines)
    while first and size_bytes + len(msgspec.json.encode(answer.lines[first - 1])) < MAX_BYTES:
        first -= 1
        size_bytes += len(msgspec.json.encode(answer.lines[first])) + 1
    return msgspec.structs.replace(answer, lines=answer.lines[first:])
