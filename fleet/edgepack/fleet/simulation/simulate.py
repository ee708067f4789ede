"""Many simulated devices in a process, each with its own connection to the real broker."""

import logging
import random
import selectors
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import paho.mqtt.client as mqtt
from msgspec import Meta

from edgepack.agent.broker.signing import read_signer
from edgepack.agent.config import AgentConfig, read_config
from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.errors import EdgepackError, TransferError
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.simulation.behaviour import Change, Weather
from edgepack.fleet.simulation.chunk_store import ChunkStore
from edgepack.fleet.simulation.port import Port
from edgepack.fleet.simulation.simulated_device import SimulatedDevice
from edgepack.settings import declared

log = logging.getLogger(__name__)

TICK_S = 0.1
RECONNECT_S = 2.0
BUSY_S = 0.005
"""How long nobody looks while only devices have something to take that may not yet."""


def _share(description: str) -> Meta:
    return Meta(ge=0, le=1, description=description, extra={"unit": "share"})


class SimulateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a simulation; `edgepack simulate` derives its options from them."""

    count: Annotated[int, Meta(ge=1, description="How many.", extra={"option": "--devices"})] = 20
    group: Annotated[str, Meta(description="Their group.")] = "simulated"
    prefix: Annotated[str, Meta(description="Ids are PREFIX-1, PREFIX-2 …")] = "sim"
    fail_rate: Annotated[float, _share("Share that fails its probe.")] = 0.0
    silent_rate: Annotated[float, _share("Share that says nothing.")] = 0.0
    changes: Annotated[
        tuple[Change, ...],
        Meta(
            description="What releases after a device's first change of what that hardware class "
            "measures: sim-arm-a76:p95=1.3 (times), sim-x86-vnni:drift=0.6 (more); repeatable.",
            extra={"option": "--worse", "metavar": "CLASS:GATE=NUMBER"},
        ),
    ] = ()
    heat: Annotated[
        float,
        Meta(
            ge=0.1,
            le=10,
            description="Factor of the latencies of all devices from the moment on that the first "
            "device runs a later release.",
        ),
    ] = 1.0
    measure_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds between the telemetry of a device; 0 with each report.",
            extra={"option": "--measure-every"},
        ),
    ] = 0.0
    loss: Annotated[float, _share("Share of the chunks that get lost.")] = 0.0
    takes: Annotated[
        Bandwidth,
        Meta(
            description="What each device takes a second, such as 1MB/s; all that comes when not "
            "given.",
        ),
    ] = UNLIMITED
    seed: Annotated[int, Meta(description="Of all that is random.")] = 0


SETTINGS = declared(SimulateSettings)


class _Connection:
    """A device's client, driven from outside."""

    def __init__(
        self,
        config: AgentConfig,
        settings: SimulateSettings,
        seed: str,
        chunks: ChunkStore,
        weather: Weather,
    ) -> None:
        if config.broker is None:
            raise TransferError("the fleet named no broker")
        broker = config.broker
        self._access = BrokerAccess(
            url=broker.url,
            ca_file=Path(broker.ca_file) if broker.ca_file else None,
            cert_file=Path(broker.cert_file) if broker.cert_file else None,
            key_file=Path(broker.key_file) if broker.key_file else None,
        )
        first = random.Random(seed).randrange(1024)
        self.client = open_client(self._access, config.device, first=first)
        self.device = SimulatedDevice(
            device=config.device,
            tenant=config.tenant,
            port=Port(
                publish=lambda topic, payload, qos, retain: self._publish(
                    topic, payload, qos, retain
                ),
                subscribe=lambda topic: self._ignore(self.client.subscribe(topic, qos=1)),
                unsubscribe=lambda topic: self._ignore(self.client.unsubscribe(topic)),
                chunks=chunks,
            ),
            sign=read_signer(config.signing_key),
            rng=random.Random(seed),
            fail_rate=settings.fail_rate,
            silent_rate=settings.silent_rate,
            clock=time.time,
            changes=settings.changes,
            loss=settings.loss,
            measure_s=settings.measure_s,
            weather=weather,
        )
        self._takes_bytes_per_s = settings.takes.bytes_per_s
        self.free_at = 0.0
        topic, will = self.device.last_will()
        self.client.will_set(topic, will, qos=1, retain=True)
        self.client.on_connect = lambda *_: self.device.connected()
        self.client.on_message = lambda _c, _u, message: self._receive(
            message.topic.encode(), bytes(message.payload)
        )
        self.client.receiver = self._receive
        self.retry_at = 0.0

    def connect(self) -> None:
        """Open the connection; raise `OSError` when the broker is not there."""
        self.client.connect_somewhere(keepalive=60)

    def _publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        self.client.publish(topic, payload, qos=qos, retain=retain)

    def _ignore(self, _: object) -> None:
        """Ignore a failed subscription: the device subscribes again at the next connection."""

    def _receive(self, topic: bytes, payload: bytes) -> None:
        if self._takes_bytes_per_s:
            self.free_at = max(time.monotonic(), self.free_at)
            self.free_at += len(payload) / self._takes_bytes_per_s
        try:
            self.device.received(topic.decode(errors="replace"), payload)
        except EdgepackError as error:
            log.warning("device=%s message dropped because=%s", self.device.device, error.problem)


def simulate(
    client: FleetClient,
    settings: SimulateSettings,
    *,
    stopping: threading.Event,
    for_s: float | None,
    show: Callable[[dict[str, int]], None],
) -> dict[str, int]:
    """Enrol devices and run the devices.

    Args:
        client: The running fleet.
        settings: Settings of the simulation.
        stopping: Ends the simulation when set.
        for_s: Duration in seconds; None runs until `stopping`.
        show: Called after every change with the number of devices by state.

    Returns:
        How many devices ended in which state.

    Raises:
        EdgepackError: The fleet refuses, or the broker cannot be reached at the start.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-simulate-") as folder:
        chunks, weather = ChunkStore(Path(folder)), Weather(settings.heat)
        connections = [
            _enrolled(client, settings, number, Path(folder), chunks, weather)
            for number in range(1, settings.count + 1)
        ]
        until = time.monotonic() + for_s if for_s is not None else float("inf")
        with selectors.DefaultSelector() as selector:
            try:
                _run(connections, selector, stopping, until, show)
            finally:
                for connection in connections:
                    _close(connection)
    return _states(connections)


def _enrolled(
    client: FleetClient,
    settings: SimulateSettings,
    number: int,
    folder: Path,
    chunks: ChunkStore,
    weather: Weather,
) -> _Connection:
    name = f"{settings.prefix}-{number}"
    enrolled = client.enroll(name, group=settings.group, folder=folder / name, replace=True)
    config = read_config(enrolled.config)
    return _Connection(config, settings, f"{settings.seed}/{name}", chunks, weather)


def _run(
    connections: list[_Connection],
    selector: selectors.BaseSelector,
    stopping: threading.Event,
    until: float,
    show: Callable[[dict[str, int]], None],
) -> None:
    for connection in connections:
        _watch(connection, selector)
        try:
            connection.connect()
        except OSError as error:
            raise TransferError(
                f"device {connection.device.device} cannot reach the broker: {error}"
            ) from error
        _serve_ready(selector, 0.0)
    shown: dict[str, int] = {}
    tick_at = 0.0
    while not stopping.is_set() and time.monotonic() < until:
        _serve_ready(selector, TICK_S)
        now = time.monotonic()
        if now < tick_at:
            continue
        tick_at = now + TICK_S
        for connection in connections:
            _tick(connection, now)
        if (states := _states(connections)) != shown:
            shown = states
            show(states)


def _watch(connection: _Connection, selector: selectors.BaseSelector) -> None:
    """Keep a client's open socket in the selector."""
    without_delay = connection.client.on_socket_open

    def opened(client: mqtt.Client, userdata: Any, sock: Any) -> None:
        if without_delay is not None:
            without_delay(client, userdata, sock)
        selector.register(sock, selectors.EVENT_READ, connection)

    def closed(_client: mqtt.Client, _userdata: Any, sock: Any) -> None:
        selector.unregister(sock)

    def wants_write(_client: mqtt.Client, _userdata: Any, sock: Any) -> None:
        selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def wrote(_client: mqtt.Client, _userdata: Any, sock: Any) -> None:
        selector.modify(sock, selectors.EVENT_READ, connection)

    connection.client.on_socket_open = opened
    connection.client.on_socket_close = closed
    connection.client.on_socket_register_write = wants_write
    connection.client.on_socket_unregister_write = wrote


def _close(connection: _Connection) -> None:
    """Report the device as offline and disconnect, as far as the socket accepts data.

    A broker publishes the last will only of a device that vanishes. The selector is left alone
    afterwards.
    """
    client = connection.client
    if client.socket() is not None:
        topic, offline = connection.device.last_will()
        client.publish(topic, offline, 1, retain=True)
        client.loop_write()
    client.disconnect()
    client.loop_write()
    client.on_socket_close = client.on_socket_unregister_write = None


def _serve_ready(selector: selectors.BaseSelector, timeout_s: float) -> None:
    ready = selector.select(timeout_s)
    now = time.monotonic()
    if ready and all(key.data.free_at > now for key, _ in ready):
        time.sleep(BUSY_S)
    for key, events in ready:
        client = key.data.client
        if key.data.free_at > now:
            continue
        if events & selectors.EVENT_READ:
            client.loop_read()
            # TLS may hold decrypted packets that no selector knows of.
            while isinstance(sock := client.socket(), ssl.SSLSocket) and sock.pending():
                client.loop_read()
        if events & selectors.EVENT_WRITE and client.socket() is not None:
            client.loop_write()


def _tick(connection: _Connection, now: float) -> None:
    if connection.client.socket() is None:
        if now >= connection.retry_at:
            connection.retry_at = now + RECONNECT_S * random.uniform(0.5, 1.5)
            try:
                connection.client.reconnect()
            except OSError as error:
                log.warning("device=%s no broker: %s", connection.device.device, error)
        return
    connection.client.loop_misc()
    connection.device.tick()


def _states(connections: list[_Connection]) -> dict[str, int]:
    return dict(sorted(Counter(c.device.state for c in connections).items()))
