"""A controller on a real database, without a broker, with messages of devices."""

import hashlib
import tempfile
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session as Transaction

from edgepack.fleet.controller.controller import Controller, Gathering
from edgepack.fleet.controller.inbox import Inbox
from edgepack.fleet.controller.metadata import MetadataKeeper
from edgepack.fleet.database import devices, enrolment, unsent
from edgepack.fleet.database.schema import CertificateRow, DeviceRow, ReleaseRow
from edgepack.fleet.database.store import Store, open_store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.documents.rollouts import (
    RollbackRequest,
    RolloutRequest,
    RolloutView,
    Selector,
)
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.enrolment.certificates import read_certificate
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.fleet.repository.director import Director
from edgepack.fleet.rollouts import execution, membership, starting, status
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.rollback import rollback
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import Message, decode, encode
from edgepack.wire.orders import BundleRef, Desired, RunModel
from edgepack.wire.reports import Active, Choice, Reported, ReportedModel
from edgepack.wire.telemetry import Telemetry
from tests.simulators.repository import RepositoryWorld
from tests.simulators.signing import CERTIFICATE, KEY, RawSigner, sign_with

OLD = BundleRef(name="digits", version="1.0.0", release=1, digest="01" * 32)
NEW = BundleRef(name="digits", version="2.0.0", release=2, digest="02" * 32)
PROVIDER = "CPUExecutionProvider"


@cache
def new_database() -> bytes:
    """Return the file of an empty database; a copy opens in a third of the time of a creation."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.db"
        open_store(f"sqlite:///{file}").close()
        return file.read_bytes()


_ENGINES: dict[str, Engine] = {}


def _share_statements(store: Store) -> None:
    """Compile each statement once in a worker, not once in each database: a seventh of the time."""
    first = _ENGINES.setdefault("first", store._engine)
    for engine in (store._engine, store._reading):
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache


class World:
    """A controller, its database, and its published messages; also the controller's broker."""

    can_publish = True

    def __init__(
        self, folder: Path, *, url: str = "", auto_enroll: bool = False, idle_step_s: float = 0.0
    ) -> None:
        file = folder / "fleet.db"
        self._folder, self._url = folder, url or f"sqlite:///{file}"
        if not url and not file.exists():
            file.write_bytes(new_database())
        self.store: Store = open_store(self._url)
        if not url:
            _share_statements(self.store)
        self.inbox = Inbox("t")
        self.withdrawn: set[BundleRef] = set()
        self.published: list[tuple[str, bytes]] = []
        self.sent: list[tuple[str, bytes]] = []
        self._signers: dict[str, RawSigner] = {}
        self.depot = Depot(
            tenant="t",
            releases=ReleaseFolder(folder / "releases", folder / "incoming"),
            send=lambda *_: True,
        )
        self.repository = RepositoryWorld(folder / "tuf", now=time.time()).repository
        self.controller_sign = Director(self.repository, "t").sign
        self.metadata = MetadataKeeper(
            self.repository, "t", publish=lambda *_: None, send=self.publish
        )
        self.controller = Controller(
            store=self.store,
            tenant="t",
            inbox=self.inbox,
            broker=self,
            depot=self.depot,
            metadata=self.metadata,
            sign=self.controller_sign,
            is_released=lambda bundle: bundle not in self.withdrawn,
            open_authority=lambda: Authority(folder / "pki"),
            auto_enroll=auto_enroll,
            gathering=Gathering(idle_s=0.0, rolling_s=0.0, idle_step_s=idle_step_s),
        )
        with self.store.transaction() as session:
            if session.get(ReleaseRow, NEW.digest) is None:
                session.add_all([release_row(OLD), release_row(NEW)])

    def publish_retained(self, topic: str, payload: bytes) -> None:
        self.published.append((topic, payload))

    def publish(self, topic: str, payload: bytes) -> None:
        self.sent.append((topic, payload))

    def acknowledge(self, topic: str, payload: bytes) -> None:
        self.sent.append((topic, payload))

    def lead(self) -> None:
        self.can_publish = True

    def follow(self) -> None:
        self.can_publish = False

    def look_after(self) -> None:
        """Do nothing: there is no connection."""

    def reopened(self) -> "World":
        """Return another controller on the same database, after this controller ended."""
        self.store.close()
        return World(self._folder, url=self._url)

    def enroll(self, device: str, group: str = "g") -> None:
        with self.store.transaction() as session:
            row = enrolment.enroll(session, device=device, group=group, now=1.0)
            unsent.add(session, membership.join(session, row, 1.0))
        self.look()

    def change(self, device: str, *, group: str = "", labels: dict[str, str] | None = None) -> None:
        with self.store.transaction() as session:
            (row,) = devices.find_devices(session, (device,))
            if group:
                enrolment.move(session, row, group, 1.0)
            enrolment.label(session, row, labels or {}, 1.0)
            unsent.add(session, membership.join(session, row, 1.0))
        self.look()

    def start(self, bundle: BundleRef = NEW, **changes: Any) -> str:
        request = msgspec.structs.replace(
            RolloutRequest(
                digest=bundle.digest, selector=Selector(kind="group", group="g"), waves="100%"
            ),
            **changes,
        )
        return starting.start(self.store, request, now=lambda: 1.0)

    def take_back(
        self, what: str, *, withdrawn: Collection[BundleRef] = (), **changes: Any
    ) -> list[str]:
        request = msgspec.structs.replace(RollbackRequest(what=what, waves="100%"), **changes)
        with self.store.transaction() as session:
            started, publications = rollback(
                session, request, 2.0, lambda bundle: bundle not in withdrawn
            )
            unsent.add(session, publications)
        self.look()
        return [name_of(rollout.number) for rollout in started]

    def hear(self, device: str, message: Message | bytes, kind: topics.UpKind = "reported") -> None:
        self.receive(device, message, kind)
        self.controller.turn()

    def hear_twice(self, device: str, message: Message, kind: topics.UpKind) -> None:
        """Deliver the same payload twice, like a broker at QoS 1."""
        payload = self.payload(device, message, kind)
        for _ in range(2):
            self.inbox.receive(topics.up("t", device, kind), payload)
            self.controller.turn()

    def reported(self, device: str) -> Reported | None:
        """Return the stored report of a device."""
        with self.store.transaction() as session:
            row = session.get(DeviceRow, device)
            return devices.last_report(row) if row is not None else None

    def receive(
        self, device: str, message: Message | bytes, kind: topics.UpKind = "reported"
    ) -> None:
        """Put a device's message into the inbox, like the broker."""
        self.inbox.receive(topics.up("t", device, kind), self.payload(device, message, kind))

    def payload(
        self, device: str, message: Message | bytes, kind: topics.UpKind = "reported"
    ) -> bytes:
        """Return a device's payload: signed, in the session of its process; a will is unsigned."""
        content = message if isinstance(message, bytes) else encode(message)
        is_will = isinstance(message, Reported) and not message.online
        if kind == "need" or is_will:
            return content
        boot = message.boot if isinstance(message, Reported) else ""
        return self.signer(device, boot).sign_raw(kind, content)

    def signer(self, device: str, boot: str = "") -> RawSigner:
        """Return the signer of a device's process; "" is the last process."""
        signer = self._signers.get(device)
        if signer is None or boot not in ("", signer.place[2]):
            signer = RawSigner(tenant="t", device=device, boot=boot or "b1", sign=sign_with(KEY))
            self._signers[device] = signer
        with self.store.transaction() as session:
            row = session.get(DeviceRow, device)
            epoch = self.controller._intake._verifier.epoch
            is_known = row is not None and row.session.startswith(epoch)
            if row is not None and not (is_known and row.session == signer.word):
                self._greet(session, row, signer)
        return signer

    def _greet(self, session: Transaction, row: DeviceRow, signer: RawSigner) -> None:
        """Simulate the greeting of a process, and a report in its session."""
        known = read_certificate(CERTIFICATE)
        session.merge(
            CertificateRow(
                serial=hashlib.sha256(row.id.encode()).hexdigest()[:32],
                device=row.id,
                key_id=known.key_id,
                expires_at=1e11,
                pem=CERTIFICATE,
            )
        )
        epoch = self.controller._intake._verifier.epoch
        word = f"{epoch} of {row.id} {signer.place[2]}"
        signer.accept(Session(boot=signer.place[2], session=word))
        row.boot, row.session = signer.place[2], signer.word
        row.report_count = row.event_count = 0
        row.desired_sent_at = 0.0

    def look(self) -> None:
        self.inbox.wake()
        self.controller.turn()

    def told(self, device: str) -> list[Desired]:
        topic = topics.desired("t", device)
        return [decode(payload, Desired) for t, payload in self.published if t == topic and payload]

    def orders(self, device: str) -> list[RunModel]:
        """Return the orders for the device's only model."""
        told = (desired.models.get(NEW.name) for desired in self.told(device))
        return [order for order in told if isinstance(order, RunModel)]

    def view(self, name: str) -> RolloutView:
        with self.store.transaction() as session:
            return status.show_rollout(session, execution.find(session, name))


def release_row(bundle: BundleRef) -> ReleaseRow:
    return ReleaseRow(
        digest=bundle.digest,
        name=bundle.name,
        version=bundle.version,
        release=bundle.release,
        folder=bundle.digest,
        size_bytes=1000,
        manifest_sha256="aa" * 32,
        manifest_bytes=10,
        signature_sha256="bb" * 32,
        signature_bytes=10,
        added_at=1.0,
    )


def says(
    state: str,
    sequence: int = 0,
    *,
    acted: int = 0,
    boot: str = "b1",
    active: BundleRef | None = None,
    previous: BundleRef | None = None,
    online: bool = True,
    because: str = "",
    target: BundleRef | None = None,
) -> Reported:
    choice = Choice(wanted="", chosen="cpu", provider=PROVIDER, because="", is_fallback=False)
    said = ReportedModel(
        state=state,
        because=because,
        sequence=sequence,
        acted_sequence=acted,
        target=target,
        active=Active(bundle=active, choice=choice, since=1.0) if active else None,
        previous=previous,
    )
    return Reported(online=online, at=1.0, boot=boot, sequence=sequence, models={NEW.name: said})


def telemetry_window(
    *, drift: float | None = None, shadow_count: int = 0, shadow_agreed: int = 0
) -> Telemetry:
    recorder = LatencyRecorder()
    for latency_ms in (1.0, 2.0, 3.0):
        recorder.record(latency_ms)
    return Telemetry(
        digest=NEW.digest,
        variant="cpu",
        provider=PROVIDER,
        window_start=5.0,
        window_s=30.0,
        latency=recorder.snapshot(),
        drift=drift,
        shadow_count=shadow_count,
        shadow_agreed=shadow_agreed,
    )
