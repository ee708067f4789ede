"""Export of metrics by OTLP from a thread of its own: nothing waits for the collector.

Sums are cumulative, so a lost export costs resolution in time, and no count. Exports that the
collector did not take wait in a bounded queue; the oldest make room, and are counted.
"""

import contextlib
import gzip
import importlib.metadata
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.decoding import decode_json
from edgepack.metrics.otlp import CONTENT_TYPE, encode
from edgepack.metrics.settings import OtlpConfig
from edgepack.metrics.table import Family, Point, family
from edgepack.text import printable
from edgepack.web.deadline import answer_within
from edgepack.web.http import BUSY, Web, WebAccess, WebError, read_body
from edgepack.web.urls import shown_url

log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""Longest wait for the collector, for one export."""
STOP_S = 1.0
_MAX_ANSWER, _MAX_HEADERS = 16 * 1024, 32
_EXPORTED = "otel.sdk.exporter.metric_data_point.exported"


class _Export(NamedTuple):
    """Encoded export, with the number of its data points."""

    body: bytes
    points: int


class _PartialSuccess(msgspec.Struct, rename="camel"):
    """Rejected data points of an answer."""

    rejected_data_points: int = 0


class _Answer(msgspec.Struct, rename="camel"):
    """Answer of a collector."""

    partial_success: _PartialSuccess = msgspec.field(default_factory=_PartialSuccess)


class Exporter:
    """Sends metrics to a collector.

    Args:
        config: Settings, with an endpoint.
        collect: Returns the metrics; called on the exporter's thread.
        resource: Attributes of the sender.
        wall: Seconds since the epoch.

    Raises:
        ValueError: A setting makes no sense.
        OSError: A named file cannot be used.
    """

    def __init__(
        self,
        config: OtlpConfig,
        collect: Callable[[], Sequence[Family]],
        resource: Mapping[str, str],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._collect, self._resource = config, collect, dict(resource)
        self._url, self._wall, self._started_at = config.url, wall, wall()
        self._headers = {
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "gzip",
            **(read_headers(Path(config.headers_file)) if config.headers_file else {}),
        }
        self._open().close()  # reports a file that cannot be used at once
        self._version = importlib.metadata.version("edgepack")
        self._queue: deque[_Export] = deque()
        self._counts: Counter[str] = Counter()
        self._trouble = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; an export under way gets a moment, and is given up then."""
        self._stop.set()
        self._thread.join(STOP_S)

    def family(self) -> Family:
        """Return the metric of exported and failed data points."""
        counts = self._counts.copy()
        return family(
            _EXPORTED,
            (Point({"error.type": kind} if kind else {}, n) for kind, n in sorted(counts.items())),
        )

    def _run(self) -> None:
        while not self._stop.wait(self._config.interval_s):
            try:
                self.turn()
            except Exception:  # the outermost loop of the thread
                log.exception("metrics are not exported because of a fault")

    def turn(self) -> None:
        """Collect an export, and send the exports that wait, the oldest first."""
        families = self._collect()
        body = encode(
            families,
            resource=self._resource,
            version=self._version,
            started_at=self._started_at,
            now=self._wall(),
        )
        self._queue.append(_Export(gzip.compress(body), sum(len(one.points) for one in families)))
        while sum(len(one.body) for one in self._queue) > self._config.queue_bytes:
            self._counts["queue_full"] += self._queue.popleft().points
        while self._queue and self._send(self._queue[0]):
            self._queue.popleft()

    def _send(self, export: _Export) -> bool:
        """Send an export.

        Returns:
            Whether the export is finished: the collector took the export, or never will.
        """
        try:
            with (
                contextlib.closing(self._open()) as web,
                web.ask(
                    self._url, method="POST", headers=self._headers, body=export.body, redirects=0
                ) as answer,
            ):
                status = answer.status
                content = read_body(answer, _MAX_ANSWER, shown_url(self._url))
        except (WebError, OSError) as error:
            self._note(printable(str(error)))
            return False
        if status in BUSY:
            self._note(f"it answers {status}")
            return False
        if not 200 <= status < 300:
            self._note(f"it refuses exports with status {status}")
            self._counts[str(status)] += export.points
            return True
        self._note("")
        rejected = min(_read_rejected(content), export.points)
        if rejected:
            self._counts["rejected"] += rejected
        self._counts[""] += export.points - rejected
        return True

    def _open(self) -> Web:
        config = self._config
        return Web(
            WebAccess(
                ca_file=config.ca_file,
                cert_file=config.cert_file,
                key_file=config.key_file,
                proxy=config.proxy,
                limits=answer_within(REQUEST_S),
            )
        )

    def _note(self, trouble: str) -> None:
        """Log a trouble once, and its end."""
        if trouble != self._trouble:
            self._trouble = trouble
            place = shown_url(self._url)
            if trouble:
                log.warning("metrics are not exported to=%s because=%s", place, trouble)
            else:
                log.info("metrics are exported again to=%s", place)


def read_headers(path: Path) -> dict[str, str]:
    """Return the headers of a file, a line `Name: value` each.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no header.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        is_name = name.replace("-", "").replace("_", "").isalnum()
        if not colon or not is_name or not value.strip().isprintable() or number > _MAX_HEADERS:
            raise ValueError(f"line {number} of {path} is no header such as 'Name: value'")
        found[name] = value.strip()
    return found


def _read_rejected(content: bytes) -> int:
    """Return the number of data points that an answer rejects; 0 if the answer does not say."""
    try:
        found = decode_json(content or b"{}", _Answer, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    return max(0, found.partial_success.rejected_data_points)
