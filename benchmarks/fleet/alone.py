"""Engine and store without a broker: the cost of a rollout to a thousand or a million devices."""

import resource
import time
from pathlib import Path

import msgspec
from sqlalchemy import insert

from edgepack.fleet.controller.inbox import Incoming
from edgepack.fleet.controller.intake import Intake, finish
from edgepack.fleet.controller.verification import Verifier
from edgepack.fleet.database.schema import CertificateRow, DeviceRow, ReleaseRow
from edgepack.fleet.database.store import Store, open_store
from edgepack.fleet.documents.rollouts import RolloutRequest, Selector
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.rollouts import starting, steps
from edgepack.wire.batches import Batch
from edgepack.wire.messages import decode, encode
from edgepack.wire.orders import BundleRef, Desired
from edgepack.wire.reports import Reported, ReportedModel
from edgepack.wire.signed import sign_batch
from tests.simulators.signing import CERTIFICATE, KEY, sign_with
from tests.simulators.world import make_facts

BUNDLE = BundleRef(name="bench", version="1.0.0", release=1, digest="01" * 32)
TENANT, SESSION = "default", "s"
FIRST_WAVE = 10_000
BATCH = 1000
STATES = ("DOWNLOADING", "VERIFIED", "PROBING", "SOAKING", "COMMITTED")
INSERTED_AT_ONCE = 10_000


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements with a number of devices; times are of the processor.

    Attributes:
        devices: How many are enrolled.
        start_s: To start a rollout to all devices.
        offer_ms: To offer the release to a device of the first wave.
        report_ms: To store a report of a device and change its assignment.
        look_ms: To check for the next step, without a due step.
        database_bytes: Size of the database with the rollout.
        peak_bytes: Memory at most, of this process so far.
    """

    devices: int
    start_s: float
    offer_ms: float
    report_ms: float
    look_ms: float
    database_bytes: int
    peak_bytes: int


def measure_alone(devices: int, folder: Path) -> Alone:
    """Enrol a number of devices in a new database of a folder, and roll out to the first wave."""
    path = folder / "fleet.db"
    store = open_store(f"sqlite:///{path}")
    _fill(store, devices)
    now = time.time()
    wave = min(FIRST_WAVE, devices)
    request = RolloutRequest(
        digest=BUNDLE.digest, selector=Selector(kind="all"), waves=f"{wave},100%"
    )
    began = time.process_time()
    starting.start(store, request)
    start_s = time.process_time() - began
    told: dict[str, int] = {}
    began = time.process_time()
    while len(told) < wave:
        with store.transaction() as session:
            for said in steps.step(session, now, lambda _: True).publications:
                told[said.device] = decode(said.payload, Desired).sequence
    offer_s = time.process_time() - began
    report_s = _report(store, told, now)
    began = time.process_time()
    with store.transaction() as session:
        steps.step(session, now, lambda _: True)
    look_s = time.process_time() - began
    store.close()
    return Alone(
        devices=devices,
        start_s=start_s,
        offer_ms=offer_s / wave * 1e3,
        report_ms=report_s / wave / (len(STATES) - 1) * 1e3,
        look_ms=look_s * 1e3,
        database_bytes=path.stat().st_size,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _fill(store: Store, devices: int) -> None:
    facts = make_facts()
    reported = encode(Reported(online=True, at=1.0, boot="b", facts=facts)).decode()
    with store.transaction() as session:
        session.add(
            ReleaseRow(
                digest=BUNDLE.digest,
                name=BUNDLE.name,
                version=BUNDLE.version,
                release=BUNDLE.release,
                folder=BUNDLE.digest,
                size_bytes=1000,
                manifest_sha256="aa" * 32,
                manifest_bytes=10,
                signature_sha256="bb" * 32,
                signature_bytes=10,
                added_at=1.0,
            )
        )
        for first in range(0, devices, INSERTED_AT_ONCE):
            rows = [
                {
                    "id": f"device-{number}",
                    "device_group": f"group-{number % 100}",
                    "enrolled_at": 1.0,
                    "online": True,
                    "last_seen": 1.0,
                    "boot": "b",
                    "session": SESSION,
                    "report_count": 1,
                    "reported": reported,
                    "hardware_class": facts.hardware_class,
                    "labels": "{}",
                }
                for number in range(first, min(devices, first + INSERTED_AT_ONCE))
            ]
            session.connection().execute(insert(DeviceRow), rows)
            certificates = [
                {
                    "serial": row["id"],
                    "device": row["id"],
                    "key_id": "shared",
                    "expires_at": 1e11,
                    "pem": CERTIFICATE,
                }
                for row in rows
            ]
            session.connection().execute(insert(CertificateRow), certificates)


def _report(store: Store, told: dict[str, int], now: float) -> float:
    """Return the processor time for all reports of an update of these devices, without the last
    report.
    """
    intake = Intake(Verifier(TENANT), _no_authority, lambda *_: True, auto_enroll=False)
    names = list(told)
    spent_s = 0.0
    for count, state in enumerate(STATES[:-1], 2):
        for first in range(0, len(names), BATCH):
            incoming = [
                Incoming(device=name, kind="reported", payload=_say(name, state, told[name], count))
                for name in names[first : first + BATCH]
            ]
            began = time.process_time()
            with store.transaction() as session:
                batch = intake.begin(session, incoming, now)
                for message in incoming:
                    intake.take(batch, message)
                finish(batch)
            spent_s += time.process_time() - began
    return spent_s


def _no_authority() -> Authority:
    raise AssertionError("nobody asks for a certificate")


def _say(device: str, state: str, sequence: int, count: int) -> bytes:
    said = ReportedModel(state=state, because="", sequence=sequence, acted_sequence=sequence)
    reported = Reported(
        online=True,
        at=1.0,
        boot="b",
        facts=make_facts(),
        sequence=sequence,
        models={BUNDLE.name: said},
    )
    batch = Batch(
        tenant=TENANT,
        device=device,
        kind="reported",
        boot="b",
        session=SESSION,
        sequence=count,
        messages=(msgspec.Raw(encode(reported)),),
    )
    return sign_batch(batch, sign_with(KEY))
