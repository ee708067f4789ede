"""A small but real controller and depot: retained offers, needs answered chunk by chunk."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE, decode_manifest
from edgepack.wire import topics
from edgepack.wire.batches import Received, Session
from edgepack.wire.messages import decode, encode
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.orders import Desired
from edgepack.wire.reports import Reported, ReportedModel
from edgepack.wire.router import Router
from edgepack.wire.telemetry import Event, Telemetry
from edgepack.wire.transfers import Need
from tests.simulators.bundles import ExampleBundle
from tests.simulators.signing import read_messages, read_report
from tests.simulators.waiting import PATIENCE_S

TENANT = "default"
ROUTER = Router({topics.up(TENANT, topics.DEVICE, kind): kind for kind in topics.UP_KINDS})


class Controller:
    """Holds bundles, offers bundles, answers needs, and stores devices' messages.

    Args:
        port: Of the broker on this machine.
        user: Its name there, with any password; "" gives none.
    """

    def __init__(self, port: int, *, user: str = "") -> None:
        self.reports: list[Reported] = []
        self.events: list[Event] = []
        self.needs: list[Need] = []
        self.telemetry: list[Telemetry] = []
        self.sent_chunks = 0
        self.pause_s = 0.0
        """Wait before each chunk."""
        self.answers = True
        """Whether needs are answered."""
        self.answers_only: set[str] | None = None
        """The only files that are sent; None sends all."""
        self.spoil: Callable[[int, bytes], bytes] = lambda _index, content: content
        """What happens to a chunk on its way."""
        self._came: dict[str, int] = {}
        self._said: dict[str, Reported] = {}
        self._files: dict[str, tuple[Path, tuple[int, ...]]] = {}
        self._queue: list[tuple[str, Need]] = []
        self._condition = threading.Condition()
        self._stopped = False
        self._offers: dict[str, bytes] = {}
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="controller", protocol=mqtt.MQTTv5
        )
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.reconnect_delay_set(1, 1)
        if user:
            client.username_pw_set(user, "any")
        client.connect("127.0.0.1", port)
        client.loop_start()
        self._client = client
        self._depot = threading.Thread(target=self._serve, daemon=True)
        self._depot.start()

    def hold(self, bundle: ExampleBundle) -> None:
        for ref in (bundle.manifest, bundle.signature):
            starts = (*fixed_chunks(ref.size_bytes), ref.size_bytes)
            self._files[ref.sha256] = (bundle.folder / ref.path, starts)
        manifest = decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())
        assert (bundle.folder / SIGNATURE_FILE).is_file()
        for entry in manifest.files:
            starts = (*offsets(entry.chunks), entry.size_bytes)
            self._files[entry.sha256] = (bundle.folder / entry.path, starts)

    def offer(self, device: str, desired: Desired) -> None:
        self.send(topics.desired(TENANT, device), encode(desired), retain=True)
        self._offers[device] = encode(desired)

    def send(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(10)

    def last(self) -> Reported | None:
        return self.reports[-1] if self.reports else None

    def wait_for(
        self, is_so: Callable[[ReportedModel], bool], *, model: str = "tiny"
    ) -> ReportedModel:
        """Wait for a state in the reports of a model, from the latest report on."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            last = self.last()
            if last is not None and last.online:
                said = last.models.get(model, ReportedModel())
                if is_so(said):
                    return said
            time.sleep(0.01)
        last = self.last()
        raise AssertionError(
            f"no such report within {PATIENCE_S:g} s; the last one was {last and last.models}"
        )

    def close(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._depot.join()
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(topics.controller_subscription(TENANT), 1)
        for device, payload in self._offers.items():
            client.publish(topics.desired(TENANT, device), payload, qos=1, retain=True)

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        found = ROUTER.find(message.topic)
        assert found is not None
        kind, device = found
        payload = bytes(message.payload)
        if kind == "need":
            need = decode(payload, Need)
            self.needs.append(need)
            with self._condition:
                self._queue.append((device, need))
                self._condition.notify()
            return
        batch, contents = read_messages(payload)
        if batch is not None and not batch.session:
            offered = Session(boot=batch.boot, session=f"of {batch.boot}")
            self._client.publish(topics.session(TENANT, device), encode(offered), qos=1)
        if kind == "telemetry" and batch is not None and batch.journal:
            last = batch.sequence + len(contents) - 1
            came = self._came.get(batch.journal, batch.sequence - 1)
            contents = contents[max(0, came - batch.sequence + 1) :]
            self._came[batch.journal] = max(came, last)
            said = encode(Received(journal=batch.journal, until=last, newest=last))
            self._client.publish(topics.received(TENANT, device), said, qos=1)
        for content in contents:
            if kind == "reported":
                self._said[device] = read_report(content, self._said.get(device))
                self.reports.append(self._said[device])
            elif kind == "event":
                self.events.append(decode(content, Event))
            else:
                self.telemetry.append(decode(content, Telemetry))

    def _serve(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                device, need = self._queue.pop(0)
            if self.answers:
                self._answer(device, need)

    def _answer(self, device: str, need: Need) -> None:
        for wanted in need.files:
            if self.answers_only is not None and wanted.sha256 not in self.answers_only:
                continue
            path, starts = self._files[wanted.sha256]
            content = path.read_bytes()
            for index in read_missing(wanted, len(starts) - 1):
                if self._stopped:
                    return
                time.sleep(self.pause_s)
                chunk = self.spoil(index, content[starts[index] : starts[index + 1]])
                # Every other chunk goes to everybody, so that both ways are used.
                topic = (
                    topics.broadcast(TENANT, wanted.sha256)
                    if index % 2
                    else topics.repair(TENANT, device, wanted.sha256)
                )
                self._client.publish(topic, index.to_bytes(4, "big") + chunk)
                self.sent_chunks += 1
