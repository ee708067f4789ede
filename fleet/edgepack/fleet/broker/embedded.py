"""Embedded broker (rumqttd, from the package iotcore) for a single machine."""

import logging
import socket
import threading
from pathlib import Path

from iotcore import Broker

from edgepack.durable import write_file
from edgepack.errors import TransferError
from edgepack.wire.messages import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
WATCH_S = 1.0
LIMITS = (
    "the embedded broker listens on this machine only, has no access rules, no TLS and no "
    "persistence, and keeps a bounded log of each topic filter in memory; for more than one "
    "machine use --broker with mosquitto or a cluster (edgepack fleet broker-config)"
)

# A v5 property ends a v4 subscriber, so there is a v5 listener only. Two segments hold far more
# than twice the depot's window of 32 chunks; iotcore's own defaults are 20 KiB and 1 GB.
_CONFIG = """\
id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = {segment_bytes}
max_segment_count = 4
[v5.1]
name = "edgepack"
listen = "{host}:{port}"
next_connection_delay_ms = 1
[v5.1.connections]
connection_timeout_ms = 10000
max_payload_size = {payload_bytes}
max_inflight_count = 200
dynamic_filters = true
"""
_SEGMENT_BYTES = 8 * 1024 * 1024


class EmbeddedBroker:
    """Broker in a child process: ends with this process, restarts when the child dies."""

    def __init__(self, *, port: int, folder: Path) -> None:
        self.url = f"mqtt://{HOST}:{port}"
        self._port = port
        config = folder / "broker.toml"
        text = _CONFIG.format(
            host=HOST,
            port=port,
            segment_bytes=_SEGMENT_BYTES,
            payload_bytes=2 * MAX_MESSAGE_BYTES,
        )
        write_file(config, text.encode())
        self._broker = Broker(config_path=str(config))
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="broker", daemon=True)

    def start(self) -> None:
        """Start listening.

        Raises:
            TransferError: The port is taken, or the broker does not come up.
        """
        try:
            self._broker.start()
        except (OSError, RuntimeError) as error:
            raise TransferError(
                f"the embedded broker cannot start: {error}",
                found_in=self.url,
                remedy=f"--broker-port {free_port()}, or --broker mqtt://… for one that runs",
            ) from error
        self._watcher.start()

    def stop(self) -> None:
        """Stop the broker."""
        self._stopping.set()
        self._watcher.join()
        self._broker.stop()

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_S):
            if self._broker.is_running:
                continue
            log.error("broker=%s died and is started again", self.url)
            try:
                self._broker.stop()
                self._broker.start()
            except (OSError, RuntimeError) as error:
                log.warning("broker=%s cannot start because=%s", self.url, error)


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
