"""Stream of a file to the devices that lack chunks."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from edgepack.agent.transfer.need_scheduler import TOLD_CHUNKS
from edgepack.fleet.depot.listener import TICK_S, Listener
from edgepack.fleet.depot.plan import EMPTY, CodedRepair, Sent, make_plan
from edgepack.fleet.depot.window import Window
from edgepack.fleet.releases.folder import Blob
from edgepack.wire.need_bitmap import read_bitmap
from edgepack.wire.transfers import Need, NeedFile

GATHER_ONE_S, GATHER_SEVERAL_S, GATHER_MOST_S = 0.15, 0.5, 10.0
"""Needs of a file are gathered until so long nobody else asked for it: the devices of a wave ask
with some jitter, and who comes too late costs another round."""
GRACE_S = 0.5
"""How long a chunk may be on its way to a device that hears nothing else meanwhile: so long, and as
long as a broker may take to hand out what is on its way."""
LOOK_S = 3.0
FORGET_S = 120.0
SILENCE_LOOK_S = 1.0
"""How often it is looked who is silent."""
REPLAN_S = 0.1
"""A plan that is not used up is made anew at most so often."""
SHARE = 20.0
"""Planning, and going over all devices, take a twentieth of the time each at most: a wave of
thousands speaks thousands of times."""


class Stream:
    """State of a file that devices lack.

    Args:
        blob: The file.
        now: Monotonic clock, seconds.
    """

    def __init__(self, blob: Blob, now: float) -> None:
        self.blob = blob
        self.listeners: dict[str, Listener] = {}
        self.window = Window()
        self._sent = Sent(plain=np.zeros(blob.chunk_count), coded=np.zeros(blob.chunk_count))
        self._all_sent_at: defaultdict[int, list[float]] = defaultdict(list)
        self._log_at: list[float] = []
        self._log_bytes: list[int] = []
        self._cursor = 0
        self._plan = EMPTY
        self._is_outdated = self._waits = False
        self._planned_at = self._planning_s = 0.0
        self._is_heard = False
        self._surveyed_at = self._surveying_s = self._silence_at = 0.0
        self._own_bytes = 0
        self._newcomers: set[str] = set()
        self._opens_at = self._gather_until = now

    @property
    def on_its_way_bytes(self) -> int:
        """Bytes of the file in flight to all devices, as far as known."""
        by_all = (self.window.sent_bytes - self.window.acked_bytes) * len(self.listeners)
        return by_all + self._own_bytes

    def hear(
        self, device: str, need: Need, wanted: NeedFile, said_at: float, busy_s: float
    ) -> None:
        """Store a device's need for this file.

        Args:
            device: Its id.
            need: The device's message.
            wanted: The part for this file.
            said_at: When that came, monotonic clock, seconds.
            busy_s: Longest time that the broker needs to deliver the data in flight.

        Raises:
            TransferError: The need is invalid.
        """
        missing = read_bitmap(wanted, self.blob.chunk_count)
        listener = self.listeners.get(device)
        if listener is None:
            self._gather(device, said_at)
            listener = Listener(device, self.blob.chunk_count, said_at - GRACE_S)
            self.listeners[device] = listener
        listener.bytes_per_s, listener.takes_coded = need.bytes_per_s, wanted.takes_coded
        until = None if need.under_way else said_at - GRACE_S - busy_s
        # Nothing new: what came last did so before an earlier word, and was told by that.
        named = wanted.latest if need.under_way or need.received else None
        latest = None if named is None else (named, self._times_of(named))
        listener.hear(missing, self._sent.plain, said_at, until, latest)
        self._is_outdated = self._is_heard = True

    def drop(self, device: str) -> None:
        """Drop a device that has the complete file."""
        self._newcomers.discard(device)
        if self.listeners.pop(device, None) is not None:
            self._is_outdated = self._is_heard = True

    def served_singly(self) -> tuple[Listener, ...]:
        """Return the devices for which there is something to send alone."""
        found = (self.listeners.get(device) for device in self._plan.single)
        return tuple(one for one in found if one is not None)

    def take(
        self, listener: Listener | None, shares: int, most_bytes: int, now: float
    ) -> list[int]:
        """Take chunks out of the plan, which are to be sent now.

        Args:
            listener: The receiver; None means all listeners.
            shares: See `Window.room`.
            most_bytes: About so many.
            now: Monotonic clock, seconds.
        """
        if listener is None:
            planned, window, is_free = self._plan.broadcast, self.window, True
        else:
            planned = self._plan.single[listener.device]
            window, is_free = listener.own, now >= listener.free_at
        taken: list[int] = []
        if not planned or not is_free or not window.room(shares, now):
            return taken
        while planned and most_bytes > 0:
            taken.append(planned.popleft())
            most_bytes -= self.size_of(taken[-1])
        return taken

    def take_coded(self, shares: int, most_bytes: int, now: float) -> list[CodedRepair]:
        """Return the coded messages to send now; coded messages use the window of the broadcast
        topic.
        """
        taken: list[CodedRepair] = []
        planned = self._plan.coded
        if planned and self.window.room(shares, now):
            while planned and most_bytes > 0:
                taken.append(planned.popleft())
                most_bytes -= self.longest(taken[-1].members)
        return taken

    def note_sent(self, listener: Listener | None, indices: list[int], now: float) -> None:
        """Note chunks sent to a device, or to all listeners."""
        for index in indices:
            if listener is not None:
                listener.note_sent(index, now, self.size_of(index))
                self._own_bytes += self.size_of(index)
                continue
            self._sent.plain[index] = at = self._log(self.size_of(index), now)
            self._all_sent_at[index].append(at)
            self._cursor = index + 1

    def note_coded(self, repairs: Sequence[CodedRepair], now: float) -> None:
        """Note sent coded messages, numbered from `next_number`."""
        for repair in repairs:
            at = self._log(self.longest(repair.members), now)
            self._sent.coded[list(repair.members)] = at
            for device, index in repair.served:
                if (listener := self.listeners.get(device)) is not None:
                    listener.note_coded(index, at)

    @property
    def next_number(self) -> int:
        """Of a coded message that goes out now: its place among all that went out to all."""
        return len(self._log_at)

    def _log(self, size_bytes: int, now: float) -> float:
        """Note something that went out to all; return when, after all that went out before."""
        at = max(now, self._log_at[-1] + TICK_S) if self._log_at else now
        self.window.sent_bytes += size_bytes
        self._log_at.append(at)
        if len(self._log_at) > max(TOLD_CHUNKS):
            self._sent.told = self._log_at[-1 - max(TOLD_CHUNKS)]
        self._log_bytes.append(self.window.sent_bytes)
        return at

    def _times_of(self, named: int) -> Sequence[float]:
        """Return the send times of the broadcast that a device names as its last received."""
        number = named - self.blob.chunk_count
        return self._all_sent_at.get(named, ()) if number < 0 else self._log_at[number : number + 1]

    def size_of(self, index: int) -> int:
        """Return length of a chunk."""
        return self.blob.bounds[index + 1] - self.blob.bounds[index]

    def longest(self, members: Sequence[int]) -> int:
        """Return the length of the longest of some chunks, and so of their coded message."""
        return max(map(self.size_of, members))

    def look(self, clock: Callable[[], float], silent_s: float) -> float:
        """Plan again if needed, and stop waiting for silent devices.

        Args:
            clock: Monotonic, seconds.
            silent_s: Time without a report after which a device does not delay others.

        Returns:
            Seconds until there may be something to send, as far as time alone decides that.
        """
        survey_in_s = self._survey(clock, silent_s)
        now = clock()
        opens_in_s = LOOK_S
        if self._newcomers and (opens_in_s := self._opens_at - now) <= 0:
            self._newcomers.clear()
            self._is_outdated = True
            opens_in_s = LOOK_S
        if self._is_outdated:
            least_s = 0.0 if self._plan.is_done and not self._waits else REPLAN_S
            since = now - self._planned_at
            if since < (wait_s := max(least_s, SHARE * self._planning_s)):
                return min(wait_s - since, survey_in_s)
            served = [one for one in self.listeners.values() if one.device not in self._newcomers]
            self._plan = make_plan(served, self._sent, self._cursor, now)
            self._is_outdated = self._plan.is_partial
            self._waits = self._is_outdated and self._plan.is_done
            self._planned_at = clock()
            self._planning_s = self._planned_at - now
        waiting = (self.listeners.get(device) for device in self._plan.single)
        waits = (one.free_at - now for one in waiting if one is not None and one.free_at > now)
        return min((opens_in_s, survey_in_s, *waits))

    def break_off(self) -> None:
        """Forget data in flight, because the connection is lost; devices will request again."""
        self.listeners.clear()
        self._newcomers.clear()
        self._own_bytes = 0
        self._plan = EMPTY
        self.window.give_up()

    def _gather(self, device: str, now: float) -> None:
        """Serve newcomers once no other device came for a moment: together the newcomers cost a
        single round.
        """
        if not self._newcomers:
            self._gather_until = now + GATHER_MOST_S
        wait_s = GATHER_SEVERAL_S if self.listeners else GATHER_ONE_S
        self._opens_at = min(now + wait_s, self._gather_until)
        self._newcomers.add(device)

    def _survey(self, clock: Callable[[], float], silent_s: float) -> float:
        """Check all devices: progress, silence and data in flight.

        Returns:
            Seconds until that is worth while again.
        """
        now = clock()
        due_at = self._surveyed_at + SHARE * self._surveying_s
        if now < due_at:
            return due_at - now if self._is_heard else LOOK_S
        if now >= self._silence_at + SILENCE_LOOK_S:
            self._silence_at = now
            self._drop_silent(now, silent_s)
        if self._is_heard:
            self._is_heard = False
            self._acknowledge()
        own = (one.own.sent_bytes - one.own.acked_bytes for one in self.listeners.values())
        self._own_bytes = sum(own)
        self._surveyed_at = clock()
        self._surveying_s = self._surveyed_at - now
        return LOOK_S

    def _acknowledge(self) -> None:
        """Move the window on with the majority of devices, so that a few slow devices hold nobody
        up.
        """
        if not self.listeners:
            self.window.give_up()
            return
        known = sorted((one.known_until for one in self.listeners.values()), reverse=True)
        place = bisect_right(self._log_at, known[len(known) // 2])
        acked_bytes = self._log_bytes[place - 1] if place else 0
        self.window.acknowledge(acked_bytes, [one.loss for one in self.listeners.values()])

    def _drop_silent(self, now: float, silent_s: float) -> None:
        for device, listener in tuple(self.listeners.items()):
            since = self.window.full_since or listener.own.full_since
            is_late = since is not None and now - since > silent_s and listener.heard_at < since
            if is_late or now - listener.heard_at > FORGET_S:
                self.drop(device)
        since = self.window.full_since
        if since is not None and now - since > 2 * silent_s:
            self.window.give_up()
