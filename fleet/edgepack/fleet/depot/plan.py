"""Plan of the chunks to send next of a file, from the devices' reports of missing chunks.

A chunk that most devices lack goes out once, to all listeners of the file. Of chunks that some
devices lack, several go out as a single message to all: each device recovers its missing chunk
(`edgepack.fleet.depot.coding`). A chunk that a single device lacks goes to that device alone. So a
file costs about its size, for any number of devices and any losses.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgepack.fleet.depot.coding import combine
from edgepack.fleet.depot.listener import Flags, Listener, Times
from edgepack.wire.coded import WINDOW_CHUNKS

BROADCAST_AT = 2
"""From so many devices on that take it no other way a chunk is broadcast."""
CODED_AHEAD = 16
"""Coded messages of a plan: what devices say meanwhile makes the next ones better."""
SETTLED_SHARE, SETTLED_S = 0.75, 1.0
"""What lacks is coded once so many devices have said what came of what went out before, or so long
after it did: a message for half of the devices costs as much as one for all."""


class Sent(msgspec.Struct, kw_only=True):
    """Send time of each chunk to all listeners, monotonic clock, seconds; 0 is never.

    Attributes:
        plain: Time of the last uncoded send.
        coded: The last time in a coded message.
        told: Time up to which devices may have reported: devices report after a few messages.
    """

    plain: Times
    coded: Times
    told: float = 0.0

    def last(self, start: int, end: int) -> float:
        """Return the latest send time of these chunks."""
        return float(max(self.plain[start:end].max(), self.coded[start:end].max()))


class CodedRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Coded message for many devices.

    Attributes:
        members: Indices of its chunks, ascending.
        served: The devices with a single missing member, and that member.
    """

    members: tuple[int, ...]
    served: tuple[tuple[str, int], ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of sends, in order: chunk indices to all listeners, coded messages to all capable
    listeners, and chunk indices to single devices.

    Attributes:
        is_partial: Whether more chunks are due than planned.
    """

    broadcast: deque[int]
    coded: deque[CodedRepair]
    single: dict[str, deque[int]]
    is_partial: bool = False

    @property
    def is_done(self) -> bool:
        """True if the plan is empty."""
        return not self.broadcast and not self.coded and not any(self.single.values())


EMPTY = Plan(broadcast=deque(), coded=deque(), single={})


def make_plan(listeners: Sequence[Listener], sent: Sent, cursor: int, now: float) -> Plan:
    """Plan the chunks that are due now.

    Args:
        listeners: The devices that lack chunks; a device with a rate limit is served singly.
        sent: When each chunk went out.
        cursor: Position of the broadcast: a late device gets the rest with the others, and the
            beginning together with other late devices.
        now: Monotonic clock, seconds.
    """
    count = len(sent.plain)
    groups = _group(listeners, sent)
    shared = [group for group in groups if group.is_shared]
    wanted, wanted_plain = (np.zeros(count, np.int32) for _ in range(2))
    coded_due: dict[Listener, Flags] = {}
    for group in shared:
        wanted += len(group.listeners) * group.due
        wanted_plain += len(group.listeners) * (group.due & ~group.coded)
        coded_due.update((one, group.coded) for one in group.listeners if one.takes_coded)
    half = sum(len(group.listeners) for group in shared) / 2
    is_broadcast = (wanted_plain >= BROADCAST_AT) | (wanted >= max(BROADCAST_AT, half))
    is_settled = partial(_is_settled, list(coded_due), sent, now)
    messages, waits = _plan_coded(coded_due, is_broadcast, wanted - wanted_plain, is_settled)
    indices = np.flatnonzero(is_broadcast)
    start = int(np.searchsorted(indices, cursor))
    alone = [one.members[0] for one in messages if len(one.members) == 1]
    single: dict[str, deque[int]] = {}
    for group in groups:
        flags = group.due & ~(group.coded & waits)
        if group.is_shared:
            flags &= ~is_broadcast
        chunks = np.flatnonzero(flags).tolist()
        if chunks:
            single.update((one.device, deque(chunks)) for one in group.listeners)
    return Plan(
        broadcast=deque((*np.roll(indices, -start).tolist(), *alone)),
        coded=deque(one for one in messages if len(one.members) > 1),
        single=single,
        is_partial=bool((wanted[waits] > 0).any()),
    )


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Devices with equal needs: in a wave of thousands nearly all are alike.

    Attributes:
        listeners: The devices.
        due: The missing chunks that are not in flight.
        coded: Chunks of `due` that may be sent in coded messages.
        is_shared: Whether the devices receive broadcasts: devices without a rate limit.
    """

    listeners: list[Listener]
    due: Flags
    coded: Flags
    is_shared: bool


def _group(listeners: Sequence[Listener], sent: Sent) -> list[_Group]:
    times = np.unique(sent.plain).tolist()
    alike: defaultdict[Hashable, list[Listener]] = defaultdict(list)
    for one in listeners:
        alike[one.plan_key(times)].append(one)
    groups = []
    for members in alike.values():
        due = members[0].chunks_to_send(sent.plain)
        is_shared = not members[0].bytes_per_s
        coded = due & ~members[0].without_code(due) if is_shared else np.zeros_like(due)
        groups.append(_Group(listeners=members, due=due, coded=coded, is_shared=is_shared))
    return groups


def _is_settled(
    listeners: Sequence[Listener], sent: Sent, now: float, start: int, end: int
) -> bool:
    """Return True if the outcome of these chunks is known well enough."""
    last = sent.last(start, end)
    known = sum(one.known_until >= min(last, sent.told) for one in listeners)
    return known >= SETTLED_SHARE * len(listeners) or now > last + SETTLED_S


def _plan_coded(
    due: Mapping[Listener, Flags],
    is_broadcast: Flags,
    wanted: NDArray[np.int32],
    is_settled: Callable[[int, int], bool],
) -> tuple[list[CodedRepair], Flags]:
    """Plan the next coded messages, window by window.

    Args:
        due: Chunks to send in coded messages, by device.
        is_broadcast: Chunks for all listeners, uncoded.
        wanted: By chunk, the number of devices in `due`.
        is_settled: Whether the outcome of a window, from start to end, is known well enough.

    Returns:
        The messages, and the chunks that wait until these messages or the broadcasts in their
        window are sent: the best combinations are known then. No message is worth sending for the
            remaining chunks.
    """
    planned: list[CodedRepair] = []
    waits = np.zeros(len(wanted), bool)
    devices = list(due)
    for start in range(0, len(wanted), WINDOW_CHUNKS):
        end = min(start + WINDOW_CHUNKS, len(wanted))
        if not wanted[start:end].any():
            continue
        is_full = len(planned) >= CODED_AHEAD
        if is_full or is_broadcast[start:end].any() or not is_settled(start, end):
            waits[start:end] = True
            continue
        found = combine(
            np.array([due[one][start:end] for one in devices]),
            np.array([one.lacking(start, end) for one in devices]),
        )
        before = len(planned)
        planned += [
            CodedRepair(
                members=tuple(start + index for index in one.members),
                served=tuple((devices[row].device, start + index) for row, index in one.served),
            )
            for one in islice(found, CODED_AHEAD - before)
        ]
        waits[start:end] = len(planned) > before
    return planned, waits
