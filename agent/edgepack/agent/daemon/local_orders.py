"""Orders of commands on this device, which the running agent carries out.

A thread for each connection reads packets; the agent's loop acts on the packets in `turn`. The
files of a release come from the command, chunk by chunk: the agent may not be able to read the
bundle, and verifies each chunk as it verifies chunks of the broker.
"""

import contextlib
import errno
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgepack.agent.state.order_socket import (
    Chunk,
    LocalOrder,
    OrderEnd,
    Packet,
    Progress,
    encode_packet,
    listen_for_orders,
    receive,
    set_buffer,
)
from edgepack.agent.state.unix_socket import peer_user
from edgepack.agent.update.dependencies import Link
from edgepack.agent.update.local_install import why_not_done
from edgepack.agent.update.models import Models
from edgepack.agent.update.updater import Updater
from edgepack.errors import EdgepackError, TransferError
from edgepack.wire.orders import RunModel
from edgepack.wire.transfers import Need

log = logging.getLogger(__name__)

MAX_COMMANDS = 8
"""Connections at a time; a further command gets an error."""
MAX_CHUNKS = 16
"""Chunks of a command that wait for the loop; then the command waits."""
DISK_REMEDY = "free disk space, run the command again; the serving release is unchanged"
ORDER_S = 10.0
"""How long a command may take to send its order."""


class LocalOrders:
    """The agent's end of the socket.

    Args:
        state_dir: The agent's state folder.
        wake: Ends the wait of the agent's loop.
    """

    def __init__(self, state_dir: Path, wake: Callable[[], None]) -> None:
        self._state_dir, self._wake = state_dir, wake
        self._commands: list[_Command] = []
        self._lock = threading.Lock()
        self._server: socket.socket | None = None

    def start(self) -> None:
        """Listen; without a socket, commands need a stopped agent."""
        try:
            self._server = listen_for_orders(self._state_dir)
        except OSError as error:
            log.warning("edgepack-agent install needs a stopped agent: no socket: %s", error)
            return
        threading.Thread(target=self._accept, name="local-orders", daemon=True).start()

    def stop(self) -> None:
        """Close the socket and all connections; a command continues with the next agent."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
        for command in self._all():
            command.close()

    def turn(self, models: Models) -> None:
        """Begin received orders, take chunks, and report transitions and ends."""
        for command in self._all():
            try:
                is_over = command.turn(models)
            except Exception as error:  # the outermost loop of what a command can cause
                if not isinstance(error, OSError):
                    log.exception("fault caused by a command on this device")
                command.end(f"the order has failed: {error}", DISK_REMEDY)
                is_over = True
            if is_over:
                command.close()
                with self._lock:
                    self._commands.remove(command)

    def ask(self, need: Need) -> bool:
        """Ask the command that has a release for chunks; return False without such a command."""
        asked = [command for command in self._all() if command.has(need.digest)]
        for command in asked:
            command.send(need)
        return bool(asked)

    def _has_another(self, command: "_Command", digest: str) -> bool:
        """Return True if a command other than this one sends the files of a release."""
        return any(one is not command and one.has(digest) for one in self._all())

    def _all(self) -> tuple["_Command", ...]:
        with self._lock:
            return tuple(self._commands)

    def _accept(self) -> None:
        assert self._server is not None
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return  # The agent stops.
                time.sleep(1.0)
                continue
            if peer_user(peer) not in (0, os.geteuid()):
                peer.close()
                continue
            command = _Command(peer, self._wake, self._has_another)
            with self._lock:
                is_one_too_many = len(self._commands) >= MAX_COMMANDS
                if not is_one_too_many:
                    self._commands.append(command)
            if is_one_too_many:
                command.end(f"the agent carries out {MAX_COMMANDS} orders already", "try again")
                command.close()
            else:
                threading.Thread(target=command.read, name="local-order", daemon=True).start()


class OrdersLink:
    """Source of chunks: the command that installs a release, else the broker.

    Args:
        orders: The commands.
        broker: The link to the broker.
    """

    def __init__(self, orders: LocalOrders, broker: Link) -> None:
        self._orders, self._broker = orders, broker

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to the broadcast chunks of exactly these files."""
        self._broker.listen(files)

    def ask(self, need: Need) -> None:
        """Ask for chunks."""
        if not self._orders.ask(need):
            self._broker.ask(need)


class _Command:
    """A connected command: `read` runs in a thread, all else in the agent's loop."""

    def __init__(
        self,
        peer: socket.socket,
        wake: Callable[[], None],
        has_another: Callable[["_Command", str], bool],
    ) -> None:
        self._peer, self._wake, self._has_another = peer, wake, has_another
        self._packets: queue.Queue[Packet | None] = queue.Queue(MAX_CHUNKS)
        self._order: LocalOrder | None = None
        self._told: Progress | None = None
        set_buffer(peer)

    def read(self) -> None:
        """Receive packets until the end; the loop takes the packets."""
        try:
            self._peer.settimeout(ORDER_S)
            packet = receive(self._peer)
            self._peer.settimeout(None)
            while packet is not None:
                self._packets.put(packet)
                self._wake()
                packet = receive(self._peer)
        except (OSError, TransferError) as error:
            log.debug("the connection of a command ended: %s", error)
        self._packets.put(None)
        self._wake()

    def has(self, digest: str) -> bool:
        """Return True if the command's order is about the bundle with this root digest."""
        order = self._order.order if self._order else None
        return getattr(getattr(order, "bundle", None), "digest", None) == digest

    def turn(self, models: Models) -> bool:
        """Act on received packets; return True if the order has ended, or the command has.

        Raises:
            OSError: The disk does not work.
        """
        for _ in range(MAX_CHUNKS):
            try:
                packet = self._packets.get_nowait()
            except queue.Empty:
                break
            if packet is None:
                self._withdraw(models)
                return True
            if isinstance(packet, LocalOrder) and self._order is None:
                try:
                    if not _has_ended(models, packet):
                        if packet.name in models:  # The state of an order before is no progress.
                            self._told = _progress(models[packet.name])
                        models.install(packet.name, packet.order)
                except EdgepackError as error:
                    self.end(error.problem, error.remedy or "")
                    return True
                self._order = packet
                log.info("model=%s ordered by a command on this device", packet.name)
            elif isinstance(packet, Chunk) and self._order is not None:
                models.accept_chunk(packet.sha256, packet.index, packet.content)
            else:
                self.end("a packet came that is out of place")
                return True
        return self._follow(models)

    def _follow(self, models: Models) -> bool:
        if self._order is None:
            return False
        if self._order.name not in models:
            self.end("another order took its place")
            return True
        updater = models[self._order.name]
        told = _progress(updater)
        if told != self._told:
            self._told = told
            self.send(told)
        if updater.disk_fault:
            self.end(f"the agent's state cannot be written: {updater.disk_fault}", DISK_REMEDY)
            self._withdraw(models)
            return True
        if not updater.is_at_rest:
            return False
        self.end(why_not_done(updater, self._order.name, self._order.order))
        return True

    def _withdraw(self, models: Models) -> None:
        """End an order whose files were not all sent before its last command ended."""
        if self._order is None or self._order.name not in models:
            return
        order = self._order.order
        if isinstance(order, RunModel) and self._has_another(self, order.bundle.digest):
            return
        orders = models[self._order.name].orders
        orders.withdraw(order, "the command that installs it has ended")

    def end(self, problem: str, remedy: str = "") -> None:
        """Tell the command how its order ended."""
        self.send(OrderEnd(problem=problem, remedy=remedy))

    def send(self, packet: Packet) -> None:
        """Send a packet; a command that does not read loses packets, and never stops the loop."""
        with contextlib.suppress(OSError):
            self._peer.send(encode_packet(packet), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close the connection; `read` ends."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._peer.close()
        with contextlib.suppress(queue.Empty):  # `read` may wait for room.
            while True:
                self._packets.get_nowait()


def _progress(updater: Updater) -> Progress:
    return Progress(state=updater.journal.state, because=updater.journal.because)


def _has_ended(models: Models, order: LocalOrder) -> bool:
    """Return True if this very order has ended: the agent was killed before its command knew."""
    if order.name not in models:
        return False
    updater = models[order.name]
    return updater.is_at_rest and updater.journal.offer == order.order
