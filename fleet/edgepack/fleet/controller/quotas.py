"""Quotas of messages for each device, so that a noisy device does not affect others."""

import heapq
import logging
import threading
import time
from collections import Counter, OrderedDict
from typing import NamedTuple

from edgepack.wire.topics import UpKind

log = logging.getLogger(__name__)

MAX_DEVICES = 100_000
"""Devices that are remembered; those that were quiet for longest go first."""
MAX_NAMED = 5
FORGED_S = 3600.0
"""People are warned of a forged message for so long after the last one."""


class Quota(NamedTuple):
    """Quota of messages of a kind for a device: a burst and a rate per second."""

    burst: float
    per_s: float


QUOTAS: dict[UpKind, Quota] = {
    # An update of one model takes about 20 reports and 15 events, and as many needs as passes.
    "reported": Quota(600, 2),
    "need": Quota(600, 5),
    # A window every 30 s for each model; those of an hour without a broker come at once.
    "telemetry": Quota(600, 1),
    "event": Quota(500, 0.1),
    # A device has 16 pieces on their way; the default quota of a day has 512.
    "sample": Quota(1000, 20),
    # An answer a request, repeated each 30 s at most.
    "log": Quota(20, 0.1),
}

WILLS = Quota(60, 0.2)
"""Last wills of a device, which have no signature."""
UNVERIFIED = Quota(1000, 50)
"""Messages of a device in whose name others publish: verified first, then charged to the device."""
ALL_UNVERIFIED = Quota(5000, 1000)
"""The same of all devices together: verification of 1,000 signatures takes about 0.1 s."""


class _Device:
    """Quota of a device, with the count of its dropped messages."""

    def __init__(self) -> None:
        self.left: dict[str, tuple[float, float]] = {}
        self.dropped: Counter[str] = Counter()


class Quotas:
    """Counters of accepted and dropped messages by device; safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: OrderedDict[str, _Device] = OrderedDict()
        self._dropping: set[str] = set()
        self._forged: OrderedDict[str, float] = OrderedDict()
        self._all = _Device()

    def admits(self, device: str, kind: UpKind, now: float, count: int = 1) -> bool:
        """Return True if a device may say this, too.

        Args:
            device: Its id.
            kind: Kind of the message.
            now: Monotonic clock, seconds.
            count: How many messages at once.
        """
        return self._charge(device, kind, QUOTAS[kind], now, count)

    def admits_will(self, device: str, now: float) -> bool:
        """Return True if another last will may come in a device's name."""
        return self._charge(device, "will", WILLS, now)

    def admits_unverified(self, device: str, kind: UpKind, now: float) -> bool:
        """Return True if the signature of another message may be verified."""
        with self._lock:
            is_within = _take(self._all, "", ALL_UNVERIFIED, now, 1)
        return is_within and self._charge(device, f"unverified {kind}", UNVERIFIED, now)

    def is_forged(self, device: str, now: float) -> bool:
        """Return True if somebody else published in a device's name in the last hour."""
        with self._lock:
            at = self._forged.get(device)
        return at is not None and now - at < FORGED_S

    def _charge(self, device: str, name: str, quota: Quota, now: float, count: int = 1) -> bool:
        with self._lock:
            is_within = _take(self._known(device), name, quota, now, count)
        if not is_within:
            self.note_dropped(device, f"{name} over quota", f"{quota.burst:g} at once")
        return is_within

    def give_back(self, device: str, kind: UpKind) -> None:
        """Give back the quota that a forged message took."""
        with self._lock:
            left = self._known(device).left
            if kind in left:
                left[kind] = (left[kind][0] + 1, left[kind][1])

    def note_forged(self, device: str, now: float) -> None:
        """Note that somebody without the device's key publishes in its name."""
        with self._lock:
            self._forged[device] = now
            self._forged.move_to_end(device)
            if len(self._forged) > MAX_DEVICES:
                self._forged.popitem(last=False)

    def warnings(self) -> tuple[str, ...]:
        """Warn of messages that devices did not sign."""
        now = time.monotonic()
        with self._lock:
            names = [name for name, at in self._forged.items() if now - at < FORGED_S]
        if not names:
            return ()
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return (
            f"messages that are not signed by the device arrive for {', '.join(names[:MAX_NAMED])}"
            f"{more}: somebody publishes in its name at the broker, or it runs with an old key "
            "(edgepack fleet devices show)",
        )

    def note_dropped(self, device: str, reason: str, detail: str) -> None:
        """Count a message of a device, and state so: the first time, the tenth, the hundredth …"""
        with self._lock:
            dropped = self._known(device).dropped
            self._dropping.add(device)
            dropped[reason] += 1
            count = dropped[reason]
        if count == 10 ** (len(str(count)) - 1):
            log.warning("device=%s dropped=%s count=%d because=%s", device, reason, count, detail)

    def dropped(self, device: str) -> dict[str, int]:
        """Return messages of a device that were dropped, by reason."""
        with self._lock:
            known = self._devices.get(device)
            return dict(known.dropped) if known else {}

    def most_dropped(self) -> dict[str, int]:
        """Return devices of which most messages were dropped, with their number; the most first."""
        with self._lock:
            counts = {name: self._devices[name].dropped.total() for name in self._dropping}
        return dict(heapq.nlargest(MAX_NAMED, counts.items(), key=lambda one: one[1]))

    def _known(self, device: str) -> _Device:
        known = self._devices.setdefault(device, _Device())
        self._devices.move_to_end(device)
        if len(self._devices) > MAX_DEVICES:
            gone, _ = self._devices.popitem(last=False)
            self._dropping.discard(gone)
        return known


def _take(device: _Device, name: str, quota: Quota, now: float, count: int) -> bool:
    """Subtract messages from a quota; return False if the quota has fewer."""
    left, at = device.left.get(name, (quota.burst, now))
    left = min(quota.burst, left + (now - at) * quota.per_s)
    device.left[name] = (max(0.0, left - count), now)
    return left >= count
