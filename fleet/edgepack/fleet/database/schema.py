"""The fleet's tables. What devices are told and what they said stands here, nowhere else."""

from sqlalchemy import ForeignKey, Index, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 1


class Base(DeclarativeBase):
    """What all tables belong to."""


class SchemaRow(Base):
    """One row: the version of these tables."""

    __tablename__ = "schema_version"
    version: Mapped[int] = mapped_column(primary_key=True)


class DeviceRow(Base):
    """A device that is enrolled.

    `desired` is the encoded message it was last told (null: nothing is wanted of it any more),
    `reported` the encoded message it last said; `desired_sequence` only grows.
    """

    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(primary_key=True)
    group: Mapped[str] = mapped_column("device_group", index=True)
    enrolled_at: Mapped[float]
    online: Mapped[bool] = mapped_column(default=False)
    last_seen: Mapped[float | None] = mapped_column(default=None)
    boot: Mapped[str] = mapped_column(default="")
    report_count: Mapped[int] = mapped_column(default=0)
    reported: Mapped[str | None] = mapped_column(Text, default=None)
    reported_sequence: Mapped[int] = mapped_column(default=0)
    hardware_class: Mapped[str] = mapped_column(default="")
    desired: Mapped[str | None] = mapped_column(Text, default=None)
    desired_sequence: Mapped[int] = mapped_column(default=0)
    desired_sent_at: Mapped[float] = mapped_column(default=0.0)


class ReleaseRow(Base):
    """A bundle that the fleet holds; `folder` is where its files lie, below the data folder."""

    __tablename__ = "releases"
    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]
    release: Mapped[int]
    folder: Mapped[str]
    size_bytes: Mapped[int]
    manifest_sha256: Mapped[str]
    manifest_bytes: Mapped[int]
    signature_sha256: Mapped[str]
    signature_bytes: Mapped[int]
    added_at: Mapped[float]


class RolloutRow(Base):
    """A rollout; `selector` is an encoded `Selector`, `waves` what a person wrote."""

    __tablename__ = "rollouts"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(ForeignKey("releases.digest"))
    selector: Mapped[str] = mapped_column(Text)
    waves: Mapped[str]
    wave: Mapped[int] = mapped_column(default=-1)
    wave_count: Mapped[int]
    soak_s: Mapped[float]
    deadline_s: Mapped[float]
    max_failed_share: Mapped[float]
    min_sample: Mapped[int]
    on_breach: Mapped[str]
    accepted_failures: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(index=True)
    because: Mapped[str] = mapped_column(Text)
    started_at: Mapped[float]
    changed_at: Mapped[float]


class AssignmentRow(Base):
    """One device's part in a rollout; `before_digest` is what it ran when it was offered."""

    __tablename__ = "assignments"
    rollout: Mapped[int] = mapped_column(ForeignKey("rollouts.number"), primary_key=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    wave: Mapped[int]
    state: Mapped[str]
    sequence: Mapped[int | None] = mapped_column(default=None)
    offered_at: Mapped[float | None] = mapped_column(default=None)
    decided_at: Mapped[float | None] = mapped_column(default=None)
    because: Mapped[str] = mapped_column(Text, default="")
    before_digest: Mapped[str] = mapped_column(default="")
    __table_args__ = (Index("assignments_by_device", "device", "sequence"),)


class EventRow(Base):
    """One thing that happened: to a device, as it said, or to a rollout (`device` is empty)."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[float]
    received_at: Mapped[float] = mapped_column(index=True)
    device: Mapped[str]
    kind: Mapped[str]
    bundle: Mapped[str]
    from_state: Mapped[str]
    to_state: Mapped[str]
    because: Mapped[str] = mapped_column(Text)
    rollout: Mapped[str]


class TelemetryRow(Base):
    """Latencies of one window of one device; a message that comes twice counts once."""

    __tablename__ = "telemetry"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    device: Mapped[str]
    digest: Mapped[str] = mapped_column(index=True)
    variant: Mapped[str]
    provider: Mapped[str]
    hardware_class: Mapped[str]
    window_start: Mapped[float]
    window_s: Mapped[float]
    received_at: Mapped[float] = mapped_column(index=True)
    failures: Mapped[int]
    histogram: Mapped[str] = mapped_column(Text)
    __table_args__ = (UniqueConstraint("device", "digest", "variant", "provider", "window_start"),)
