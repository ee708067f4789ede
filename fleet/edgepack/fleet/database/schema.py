"""The fleet's tables. Orders to devices and their reports are stored only here.

A new database is made from these classes; `migrations/` change an existing database.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from edgepack.decoding import decode_json
from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.gates import Found, GateView
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector, SetAside
from edgepack.wire.orders import BundleRef
from edgepack.wire.telemetry import Histogram


class StoredText(TypeDecorator[str]):
    """Text of any content: characters that a database cannot hold (NUL, lone surrogates) become
    `\\ufffd`.

    Devices may send such text, and a batch of messages must not fail for such text.
    """

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):  # nearly all of it
            return value
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()


class StoredLongText(StoredText):
    """The same, for documents and sentences."""

    impl = Text
    cache_ok = True


class Encoded(TypeDecorator[Any]):
    """A value as JSON: a frozen struct, or a dictionary or tuple that is replaced as a whole.

    Args:
        kind: The type of the value.
    """

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return decode_json(value or "", self.kind)


LONG = BigInteger().with_variant(Integer, "sqlite")
"""A number that outgrows 32 bits; SQLite's integers have 64 anyway."""


def _index_of(name: str, columns: Sequence[str], where: str) -> Index:
    """Return an index of some rows alone."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {str: StoredText, float: Double}  # noqa: RUF012 (SQLAlchemy's own name)


class DeviceRow(Base):
    """A device that is enrolled.

    `desired` is the encoded order last published (null: no order any more), `reported` the encoded
    last report; `desired_sequence` only grows. `session` is that of its signed batches, `boot` its
    process. `report_count` and `event_count` are the numbers of the last accepted messages.
    `labels` is an encoded dictionary, `certificate` the serial number (hex) of its certificate.
    `standing` is the state of its last report, see `standing.py`; "" before its first report.
    `symptom` is that of its first degraded model; "" without one.
    """

    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(primary_key=True)
    group: Mapped[str] = mapped_column("device_group", index=True)
    enrolled_at: Mapped[float]
    online: Mapped[bool] = mapped_column(default=False, index=True)
    last_seen: Mapped[float | None] = mapped_column(default=None)
    boot: Mapped[str] = mapped_column(default="")
    session: Mapped[str] = mapped_column(default="")
    report_count: Mapped[int] = mapped_column(LONG, default=0)
    event_count: Mapped[int] = mapped_column(LONG, default=0)
    reported: Mapped[str | None] = mapped_column(StoredLongText, default=None)
    reported_sequence: Mapped[int] = mapped_column(LONG, default=0)
    hardware_class: Mapped[str] = mapped_column(default="")
    desired: Mapped[str | None] = mapped_column(StoredLongText, default=None)
    desired_sequence: Mapped[int] = mapped_column(LONG, default=0)
    desired_sent_at: Mapped[float] = mapped_column(default=0.0)
    labels: Mapped[str] = mapped_column(StoredLongText, default="{}")
    certificate: Mapped[str] = mapped_column(default="")
    standing: Mapped[str] = mapped_column(default="")
    symptom: Mapped[str] = mapped_column(default="")
    __table_args__ = (
        Index(
            "devices_by_standing",
            *("standing", "online", "desired_sequence", "reported_sequence", "symptom", "id"),
        ),
    )


class DeviceModelRow(Base):
    """Model of a device, from its last report; written by `standing.py` only.

    `digest` and `version` are of the serving release, "" while nothing serves.
    """

    __tablename__ = "device_models"
    device: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    digest: Mapped[str]
    version: Mapped[str]
    variant: Mapped[str]
    provider: Mapped[str]
    is_fallback: Mapped[bool]
    __table_args__ = (Index("device_models_by_release", "name", "digest", "version", "device"),)


class ReleaseRow(Base):
    """A bundle that the fleet holds; `folder` is where its files lie, below a controller's folder.

    `source` is the URL for controllers without the files, "" for none. A deleted release stays here
    without files, so that no other content takes its name. `items` are the answers
    that its tasks count, such as boxes.
    """

    __tablename__ = "releases"
    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    release: Mapped[int] = mapped_column(LONG)
    folder: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(LONG)
    manifest_sha256: Mapped[str]
    manifest_bytes: Mapped[int] = mapped_column(LONG)
    signature_sha256: Mapped[str]
    signature_bytes: Mapped[int] = mapped_column(LONG)
    added_at: Mapped[float]
    deleted_at: Mapped[float | None] = mapped_column(default=None)
    source: Mapped[str] = mapped_column(default="")
    items: Mapped[str] = mapped_column(default="answers")

    @property
    def bundle(self) -> BundleRef:
        """Reference to the bundle."""
        return BundleRef(
            name=self.name, version=self.version, release=self.release, digest=self.digest
        )


class RolloutRow(Base):
    """A rollout, its settings and its progress.

    `takes_back` is, for a rollback, the digest of the release that its devices leave. `held` are
    the hardware classes that are held back, each with the reason; `accepted` the breaches that a
    person resumed after; `set_aside` the devices that alone measured a breach. `evidence_since` is
    the start of the wait for measurements of a finished wave, `approved` the index of the last
    approved wave, `zones` the time zones of its devices if the rollout has a window. `waits_for`
    states the reason for waiting, `waits_reason` the same as a single word. `decided` are the gates
    at the decision that stopped or ended the rollout, made at `decided_at`; `stopped_by` is the
    gate that decided.
    """

    __tablename__ = "rollouts"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(ForeignKey("releases.digest"))
    selector: Mapped[Selector] = mapped_column(Encoded(Selector))
    settings: Mapped[RolloutSettings] = mapped_column(Encoded(RolloutSettings))
    wave: Mapped[int] = mapped_column(default=-1)
    wave_count: Mapped[int]
    accepted_failures: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(index=True)
    because: Mapped[str] = mapped_column(StoredLongText)
    started_at: Mapped[float]
    changed_at: Mapped[float]
    takes_back: Mapped[str] = mapped_column(default="")
    evidence_since: Mapped[float | None] = mapped_column(default=None)
    held: Mapped[dict[str, str]] = mapped_column(Encoded(dict[str, str]), default={})
    accepted: Mapped[tuple[str, ...]] = mapped_column(Encoded(tuple[str, ...]), default=())
    approved: Mapped[int] = mapped_column(default=0)
    zones: Mapped[tuple[str, ...]] = mapped_column(Encoded(tuple[str, ...]), default=())
    waits_for: Mapped[str] = mapped_column(StoredLongText, default="")
    waits_reason: Mapped[str] = mapped_column(default="")
    decided: Mapped[tuple[GateView, ...]] = mapped_column(Encoded(tuple[GateView, ...]), default=())
    decided_at: Mapped[float | None] = mapped_column(default=None)
    stopped_by: Mapped[str] = mapped_column(default="")
    set_aside: Mapped[tuple[SetAside, ...]] = mapped_column(
        Encoded(tuple[SetAside, ...]), default=()
    )


class AssignmentRow(Base):
    """Assignment of a device to a rollout; `before_digest` is its release at the time of the offer.

    `hardware_class` is the class for its wave's counts; `site` and `zone` (a time zone) are set if
    the rollout uses site limits or a window.
    """

    __tablename__ = "assignments"
    rollout: Mapped[int] = mapped_column(ForeignKey("rollouts.number"), primary_key=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    wave: Mapped[int]
    state: Mapped[str]
    sequence: Mapped[int | None] = mapped_column(LONG, default=None)
    offered_at: Mapped[float | None] = mapped_column(default=None)
    decided_at: Mapped[float | None] = mapped_column(default=None)
    because: Mapped[str] = mapped_column(StoredLongText, default="")
    before_digest: Mapped[str] = mapped_column(default="")
    hardware_class: Mapped[str] = mapped_column(default="")
    site: Mapped[str] = mapped_column(default="")
    zone: Mapped[str] = mapped_column(default="")
    __table_args__ = (
        _index_of("assignments_by_site", ("rollout", "site", "state"), "site != ''"),
        _index_of("assignments_waiting", ("rollout", "wave", "device"), "state = 'WAITING'"),
        Index("assignments_by_device", "device", "sequence"),
        Index("assignments_by_state", "rollout", "state", "offered_at"),
    )


class WaveRow(Base):
    """Counts of the assignments of a wave and hardware class by state.

    Kept in step by `assignments.py` alone.
    """

    __tablename__ = "wave_counts"
    rollout: Mapped[int] = mapped_column(ForeignKey("rollouts.number"), primary_key=True)
    wave: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hardware_class: Mapped[str] = mapped_column(primary_key=True)
    waiting: Mapped[int] = mapped_column(default=0)
    offered: Mapped[int] = mapped_column(default=0)
    working: Mapped[int] = mapped_column(default=0)
    committed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    silent: Mapped[int] = mapped_column(default=0)
    withdrawn: Mapped[int] = mapped_column(default=0)
    recalled: Mapped[int] = mapped_column(default=0)


class MeasurementRow(Base):
    """Measurements of a release on a device; `rollout` is the newest with this release, or 0.

    `before` is the digest of the device's previous release, `look_s` the seconds of the rollout's
    first look, `is_compared` whether the device measured the previous release that long. `told` is
    an encoded `ReleaseMeasurements`, `baseline` the numbers of the previous release at the offer,
    `measured` the numbers of this release; see `measurements.py`.
    """

    __tablename__ = "measurements"
    device: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    rollout: Mapped[int]
    wave: Mapped[int]
    hardware_class: Mapped[str]
    before: Mapped[str]
    look_s: Mapped[float]
    is_compared: Mapped[bool]
    baseline: Mapped[str] = mapped_column(StoredLongText)
    measured: Mapped[str] = mapped_column(StoredLongText)
    told: Mapped[str] = mapped_column(StoredLongText)
    __table_args__ = (
        _index_of(
            "measurements_by_rollout",
            ("rollout", "hardware_class", "wave", "device"),
            "rollout != 0",
        ),
    )


class WaveMeasureRow(Base):
    """Devices of a wave and class that measured long enough; see `measurements.py`."""

    __tablename__ = "wave_measures"
    rollout: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    wave: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hardware_class: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    devices: Mapped[int]


class LookRow(Base):
    """Look at a hardware class in a rollout: the changes by gate, see `rollouts/looks.py`.

    `wave` and `look` identify a planned look.
    """

    __tablename__ = "looks"
    rollout: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hardware_class: Mapped[str] = mapped_column(primary_key=True)
    wave: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    look: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    taken_at: Mapped[float]
    found: Mapped[dict[str, Found]] = mapped_column(Encoded(dict[str, Found]))


class NoiseRow(Base):
    """Pairs A/A of devices with an unchanged release: their number, and the sum of squares."""

    __tablename__ = "noise"
    digest: Mapped[str] = mapped_column(primary_key=True)
    hardware_class: Mapped[str] = mapped_column(primary_key=True)
    gate: Mapped[str] = mapped_column(primary_key=True)
    pairs: Mapped[int] = mapped_column(LONG)
    squares: Mapped[float]


class EventRow(Base):
    """Event of a device, as reported, or of a rollout (`device` is empty)."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=True)
    at: Mapped[float]
    received_at: Mapped[float] = mapped_column(index=True)
    device: Mapped[str]
    kind: Mapped[str]
    bundle: Mapped[str]
    from_state: Mapped[str]
    to_state: Mapped[str]
    because: Mapped[str] = mapped_column(StoredLongText)
    rollout: Mapped[str]
    __table_args__ = (
        Index("events_by_device", "device", "id"),
        Index("events_by_rollout", "rollout", "device", "id"),
    )


class TokenRow(Base):
    """A token that lets its owner in; of the token itself only the SHA-256 (hex) is kept."""

    __tablename__ = "tokens"
    name: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    made_at: Mapped[float]
    made_by: Mapped[str]
    expires_at: Mapped[float | None] = mapped_column(default=None)


class CertificateRow(Base):
    """A certificate of a device, until expiry: PEM, number and key (hex; see `authority.py`)."""

    __tablename__ = "certificates"
    serial: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(index=True)
    key_id: Mapped[str]
    expires_at: Mapped[float]
    pem: Mapped[str] = mapped_column(StoredLongText)


class EnrolmentTokenRow(Base):
    """Enrolment token for a device's first certificate: its digest, and the key that used the
    token.

    `key_id` is "" before the first use.
    """

    __tablename__ = "enrolment_tokens"
    hash: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(index=True)
    expires_at: Mapped[float]
    key_id: Mapped[str] = mapped_column(default="")


class WebhookRow(Base):
    """Webhook with the progress of its deliveries; see `webhooks.py`.

    The secret is stored in clear: the secret signs messages. `key` begins the ids of its messages,
    `audit_after` and `event_after` are the ids last delivered.
    """

    __tablename__ = "webhooks"
    name: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str]
    url: Mapped[str] = mapped_column(StoredLongText)
    secret: Mapped[str]
    types: Mapped[tuple[str, ...]] = mapped_column(Encoded(tuple[str, ...]))
    is_unsafe: Mapped[bool]
    made_at: Mapped[float]
    made_by: Mapped[str]
    audit_after: Mapped[int] = mapped_column(LONG, default=0)
    event_after: Mapped[int] = mapped_column(LONG, default=0)
    delivered: Mapped[int] = mapped_column(LONG, default=0)
    skipped: Mapped[int] = mapped_column(LONG, default=0)
    failures: Mapped[int] = mapped_column(default=0)
    because: Mapped[str] = mapped_column(StoredLongText, default="")
    next_at: Mapped[float] = mapped_column(default=0.0)


class SessionRow(Base):
    """Session of a dashboard user: digests of the cookie and of the token shown.

    Users of an identity provider have no token (""); name and role are stored instead.
    """

    __tablename__ = "sessions"
    hash: Mapped[str] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(index=True)
    expires_at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(StoredText, default="")
    role: Mapped[str] = mapped_column(default="")


class AuditRow(Base):
    """Action or decision: actor, object, and the numbers that decided.

    Texts are empty if not applicable. See `audit.py`.
    """

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str]
    action: Mapped[str]
    rollout: Mapped[str]
    device: Mapped[str]
    model: Mapped[str]
    digest: Mapped[str]
    because: Mapped[str] = mapped_column(StoredLongText)
    numbers: Mapped[dict[str, Number]] = mapped_column(Encoded(dict[str, Number]))
    __table_args__ = (
        Index("audit_by_rollout", "rollout", "id"),
        Index("audit_by_device", "device", "id"),
    )


class _Latency:
    """Columns of latencies that like devices reported of a release in a period: see `latency.py`.

    `rollout` is the newest rollout of the release on these devices, 0 without a rollout; `length_s`
    and `start` are seconds, and seconds since the epoch.
    """

    rollout: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(primary_key=True)
    device_group: Mapped[str] = mapped_column(primary_key=True)
    hardware_class: Mapped[str] = mapped_column(primary_key=True)
    provider: Mapped[str] = mapped_column(primary_key=True)
    variant: Mapped[str] = mapped_column(primary_key=True)
    is_simulator: Mapped[bool] = mapped_column(primary_key=True)
    length_s: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    start: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=False)
    failures: Mapped[int] = mapped_column(LONG)
    histogram: Mapped[Histogram] = mapped_column(Encoded(Histogram))
    first_tokens: Mapped[Histogram] = mapped_column(Encoded(Histogram))


class LatencyRow(_Latency, Base):
    """Latencies of devices with any labels."""

    __tablename__ = "latency"
    __table_args__ = (
        Index("latency_by_age", "length_s", "start"),
        Index("latency_by_release", "digest", "length_s", "start"),
    )


class LabelSetRow(Base):
    """Labels that devices have: an encoded dictionary, and its SHA-256 (hex)."""

    __tablename__ = "label_sets"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(unique=True)
    labels: Mapped[str] = mapped_column(StoredLongText)


class _LabelSet:
    """`label_set` is the id of a `LabelSetRow`, 0 for undistinguished devices."""

    label_set: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class LabelledLatencyRow(_LabelSet, _Latency, Base):
    """Latencies of devices with the same labels, by hour and by day."""

    __tablename__ = "labelled_latency"
    __table_args__ = (Index("labelled_latency_by_age", "length_s", "start"),)


class LatencySourceRow(Base):
    """Source of latencies."""

    __tablename__ = "latency_sources"
    device: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    variant: Mapped[str] = mapped_column(primary_key=True)
    provider: Mapped[str] = mapped_column(primary_key=True)
    rollout: Mapped[int]
    hardware_class: Mapped[str]
    is_simulator: Mapped[bool]
    told_at: Mapped[float]
    __table_args__ = (
        Index(
            "latency_sources_by_kind",
            *("rollout", "digest", "is_simulator", "hardware_class", "provider", "variant"),
        ),
    )


class TelemetrySequenceRow(Base):
    """Sequence numbers of a device's received telemetry: see `telemetry_sequences.py`."""

    __tablename__ = "telemetry_sequences"
    device: Mapped[str] = mapped_column(primary_key=True)
    counted_in: Mapped[str]
    sequence: Mapped[int] = mapped_column(LONG)
    came: Mapped[int] = mapped_column(LONG)
    counted_until: Mapped[float]


class CaptureRow(Base):
    """A request for samples of a model; on the wire its id is `s` and the number.

    `samples` are wanted in total, `share` from each device. `of` are the reasons for which devices
    choose samples, `recipient` is the public key (PEM) to which devices encrypt.
    """

    __tablename__ = "captures"
    number: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=True)
    model: Mapped[str] = mapped_column(index=True)
    of: Mapped[tuple[str, ...]] = mapped_column(Encoded(tuple[str, ...]))
    samples: Mapped[int]
    share: Mapped[int]
    recipient: Mapped[str] = mapped_column(StoredLongText)
    collect_s: Mapped[float]
    made_at: Mapped[float]
    expires_at: Mapped[float]


class CapturedDeviceRow(Base):
    """A device of a request for samples."""

    __tablename__ = "captured_devices"
    capture: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=False)
    device: Mapped[str] = mapped_column(primary_key=True)


class SampleRow(Base):
    """An encrypted sample of a device.

    `sample` is its SHA-256, `pieces` the number of stored pieces. With a `problem` the sample has
    no content any more, and none is taken again.
    """

    __tablename__ = "samples"
    device: Mapped[str] = mapped_column(primary_key=True)
    sample: Mapped[str] = mapped_column(primary_key=True)
    capture: Mapped[int] = mapped_column(LONG, index=True)
    model: Mapped[str]
    reason: Mapped[str]
    size_bytes: Mapped[int]
    pieces: Mapped[int]
    is_whole: Mapped[bool]
    problem: Mapped[str]
    received_at: Mapped[float]
    __table_args__ = (Index("samples_by_model", "model", "is_whole", "device", "sample"),)


class SamplePieceRow(Base):
    """A piece of an encrypted sample."""

    __tablename__ = "sample_pieces"
    device: Mapped[str] = mapped_column(primary_key=True)
    sample: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class DeviceLogRow(Base):
    """The last request for a device's log lines, with the answer; on the wire its id is `l` and the
    number.

    `received_at` is 0 before the answer.
    """

    __tablename__ = "device_logs"
    device: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(LONG)
    wanted: Mapped[int]
    asked_at: Mapped[float]
    expires_at: Mapped[float]
    received_at: Mapped[float]
    because: Mapped[str]
    lines: Mapped[tuple[str, ...]] = mapped_column(Encoded(tuple[str, ...]))


class LeaseRow(Base):
    """Lease of the leader among the controllers that share the database: see `lease.py`.

    `renewals` grows with each new leader and each renewal; `epoch` is the number with which the
    leader began. A lower number than before proves an older copy of the database. `expires_at` is
    by the database's clock. `asked` grows when another controller leaves work for the leader.
    `voice` is the MQTT client id of the leader.
    """

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(LONG)
    renewals: Mapped[int] = mapped_column(LONG, default=0)
    holder: Mapped[str]
    expires_at: Mapped[float]
    asked: Mapped[int] = mapped_column(LONG, default=0)
    voice: Mapped[str]


class UnsentRow(Base):
    """Device whose newest `desired`, changed by a user, the leader has yet to publish."""

    __tablename__ = "unsent"
    id: Mapped[int] = mapped_column(LONG, primary_key=True, autoincrement=True)
    device: Mapped[str]
