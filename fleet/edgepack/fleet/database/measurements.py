"""Measurements of devices for a rollout's release, compared with the previous releases.

Each device is compared with itself: its measurements of the new release against its measurements of
the previous release or, with too few measurements, against its hardware class. Measurements are
counted by wave and class (`WaveSums`) in the transaction of each message; so a rollout's gates read
a few rows for any number of devices.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import bindparam, delete, select, tuple_
from sqlalchemy.orm import Session

from edgepack.fleet.database.latency_views import sum_of_class
from edgepack.fleet.database.measures import ReleaseMeasurements, measures_of
from edgepack.fleet.database.schema import MeasurementRow, WaveMeasureRow
from edgepack.fleet.database.upsert import upsert
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.wire.messages import Choice, Telemetry

AWAITED = "awaited"
"""Under this name stand the devices that committed, measured the release before, and did not yet
tell what they measure of this one."""
AWAITED_DRIFT = "awaited drift"
"""The same of drift, which takes more inferences than latency does."""

_AWAITED = {"p95": AWAITED, "drift": AWAITED_DRIFT}


class Place(NamedTuple):
    """Place in which a device's measurements are counted."""

    rollout: int
    wave: int
    hardware_class: str


class Offered(NamedTuple):
    """A device that is offered a release.

    Attributes:
        device: Its id.
        hardware_class: The device's hardware class; "" before its first report.
        place: Wave and class for the counts.
        before: Digest of the device's current release; "" for none.
        choice: The current variant; None for none.
    """

    device: str
    hardware_class: str
    place: Place
    before: str
    choice: Choice | None


class Committed(NamedTuple):
    """A device that committed a release, and with which variant."""

    device: str
    digest: str
    choice: Choice


class Sample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Sample of a device for a gate: `value` is a logarithm if the gate compares a ratio.

    `before` is the same of the release before; None when that is not known.
    """

    value: float
    before: float | None


class WaveSums(NamedTuple):
    """Sums over the devices of a wave and class that measured something, now and before.

    Attributes:
        devices: How many.
        unbased: Further devices with a measurement now, but without an earlier measurement.
        total, squares: Sum, and sum of squares, of the difference that each device measured.
        before: Sum of the earlier measurements.
    """

    devices: int = 0
    unbased: int = 0
    total: float = 0.0
    squares: float = 0.0
    before: float = 0.0

    def plus(self, other: "WaveSums", sign: int = 1) -> "WaveSums":
        """Return the sum of both, or the difference with `sign` -1."""
        return WaveSums(
            self.devices + sign * other.devices,
            self.unbased + sign * other.unbased,
            self.total + sign * other.total,
            self.squares + sign * other.squares,
            self.before + sign * other.before,
        )


ClassSums = dict[str, tuple[dict[str, WaveSums], ...]]
"""By hardware class: for each wave in order the sums by gate."""

_Key = tuple[str, str]


class _Row(NamedTuple):
    place: Place
    is_awaited: bool
    told: ReleaseMeasurements
    baseline: dict[str, float]
    measured: dict[str, Sample]


_COLUMNS = tuple(
    getattr(MeasurementRow, name)
    for name in (
        *("device", "digest", "rollout", "wave", "hardware_class"),
        *("is_awaited", "told", "baseline", "measured"),
    )
)
_ROWS = select(*_COLUMNS).where(
    tuple_(MeasurementRow.device, MeasurementRow.digest).in_(bindparam("keys", expanding=True))
)
_SUMS = select(
    WaveMeasureRow.wave,
    WaveMeasureRow.hardware_class,
    WaveMeasureRow.gate,
    *(getattr(WaveMeasureRow, name) for name in WaveSums._fields),
).where(WaveMeasureRow.rollout == bindparam("rollout"))
_MEASUREMENTS = msgspec.json.Decoder(ReleaseMeasurements)
_BASELINE = msgspec.json.Decoder(dict[str, float])
_MEASURED = msgspec.json.Decoder(dict[str, Sample])
_NOWHERE = Place(0, 0, "")


def note_offered(session: Session, digest: str, offered: Sequence[Offered]) -> None:
    """Keep devices' measurements of their current release, and restart the measurements of the
    offered release.
    """
    before = _read(session, [(one.device, one.before) for one in offered if one.before])
    old = _read(session, [(one.device, digest) for one in offered])
    of_class: dict[tuple[str, str], dict[str, float]] = {}
    new: dict[_Key, _Row] = {}
    for one in offered:
        if one.before == digest:  # The same release: there is nothing to compare it with.
            new[one.device, digest] = _Row(one.place, False, ReleaseMeasurements(), {}, {})
            continue
        known = before.get((one.device, one.before))
        baseline = known.told.measures() if known else {}
        like = (one.before, one.hardware_class)
        if all(like) and "p95" not in baseline:
            if like not in of_class:
                of_class[like] = _measures_of_class(session, *like)
            baseline = of_class[like] | baseline
        if one.choice is not None:
            baseline |= measures_of(one.choice)
        new[one.device, digest] = _Row(one.place, False, ReleaseMeasurements(), baseline, {})
    _write(session, old, new)


def note_committed(session: Session, committed: Sequence[Committed]) -> None:
    """Count the chosen variants of devices, and the devices to wait for."""
    old = _read(session, [(one.device, one.digest) for one in committed])
    new: dict[_Key, _Row] = {}
    for one in committed:
        row = old.get((one.device, one.digest))
        if row is None or not row.place.rollout:
            continue
        measured = row.measured | _samples(measures_of(one.choice), row.baseline)
        is_awaited = any(_lacking(measured, row.baseline))
        new[one.device, one.digest] = row._replace(measured=measured, is_awaited=is_awaited)
    _write(session, old, new)


def take_out(session: Session, device: str, digest: str) -> None:
    """Remove a device's measurements of a release from the sums of its wave, for good."""
    old = _read(session, [(device, digest)])
    _write(session, old, {key: row._replace(place=_NOWHERE) for key, row in old.items()})


def add_windows(session: Session, windows: Sequence[tuple[str, Telemetry]]) -> None:
    """Add windows, each with its device; every window must be new."""
    by_key: dict[_Key, list[Telemetry]] = defaultdict(list)
    for device, window in windows:
        by_key[device, window.digest].append(window)
    old = _read(session, by_key)
    new: dict[_Key, _Row] = {}
    for key, told in by_key.items():
        row = old.get(key, _Row(_NOWHERE, False, ReleaseMeasurements(), {}, {}))
        row = row._replace(told=row.told.plus(told))
        if row.place.rollout:
            measured = row.measured | _samples(row.told.measures(), row.baseline)
            is_awaited = row.is_awaited and any(_lacking(measured, row.baseline))
            row = row._replace(measured=measured, is_awaited=is_awaited)
        new[key] = row
    _write(session, old, new)


def sums_of(session: Session, rollout: int) -> ClassSums:
    """Return the sums of a rollout's devices."""
    found: dict[str, dict[int, dict[str, WaveSums]]] = defaultdict(lambda: defaultdict(dict))
    for wave, hardware_class, gate, *numbers in session.execute(_SUMS, {"rollout": rollout}):
        found[hardware_class][wave][gate] = WaveSums(*numbers)
    return {
        name: tuple(waves.get(wave, {}) for wave in range(max(waves) + 1))
        for name, waves in found.items()
    }


def remove(session: Session, devices: Sequence[str]) -> None:
    """Delete measurements of devices; decisions based on these measurements stay."""
    session.execute(delete(MeasurementRow).where(MeasurementRow.device.in_(devices)))


def _measures_of_class(session: Session, digest: str, hardware_class: str) -> dict[str, float]:
    """Return a hardware class's measurements of a release, in the form of a device's."""
    whole = sum_of_class(session, digest, hardware_class)
    told = ReleaseMeasurements()
    recent = msgspec.structs.replace(told.recent, latency=whole.histogram, failures=whole.failures)
    return ReleaseMeasurements(recent=recent).measures()


def _lacking(measured: Mapping[str, Sample], baseline: Mapping[str, float]) -> list[str]:
    """Return the gates that a device measured for the previous release and not yet for this
    release.
    """
    return [
        awaited for gate, awaited in _AWAITED.items() if gate in baseline and gate not in measured
    ]


def _samples(measures: Mapping[str, float], baseline: Mapping[str, float]) -> dict[str, Sample]:
    return {
        name: Sample(value=_scaled(name, value), before=_before(name, baseline))
        for name, value in measures.items()
    }


def _before(name: str, baseline: Mapping[str, float]) -> float | None:
    if BY_NAME[name].comparison == "share":
        return 0.0
    return _scaled(name, baseline[name]) if name in baseline else None


def _scaled(name: str, value: float) -> float:
    is_ratio = BY_NAME[name].comparison == "ratio"
    return math.log(max(value, 1e-12)) if is_ratio else value


def _read(session: Session, keys: Iterable[_Key]) -> dict[_Key, _Row]:
    asked = list(keys)
    if not asked:
        return {}
    return {
        (device, digest): _Row(
            Place(*place),
            is_awaited,
            _MEASUREMENTS.decode(told),
            _BASELINE.decode(baseline),
            _MEASURED.decode(measured),
        )
        for device, digest, *place, is_awaited, told, baseline, measured in session.execute(
            _ROWS, {"keys": asked}
        )
    }


def _write(session: Session, old: Mapping[_Key, _Row], new: Mapping[_Key, _Row]) -> None:
    """Write rows, and count the changes in their waves."""
    if not new:
        return
    rows = [
        {"device": key[0], "digest": key[1], **row.place._asdict(), "is_awaited": row.is_awaited}
        | {
            name: msgspec.json.encode(value).decode()
            for name, value in (
                ("told", row.told),
                ("baseline", row.baseline),
                ("measured", row.measured),
            )
        }
        for key, row in sorted(new.items())
    ]
    added = upsert(session, MeasurementRow)
    kept = {name: added.excluded[name] for name in rows[0] if name not in ("device", "digest")}
    statement = added.on_conflict_do_update(index_elements=["device", "digest"], set_=kept)
    session.connection().execute(statement, rows)
    changes: dict[tuple[Place, str], WaveSums] = defaultdict(WaveSums)
    for key, row in new.items():
        before = old.get(key)
        for place, gate, sums in _counted(row):
            changes[place, gate] = changes[place, gate].plus(sums)
        # What an earlier rollout of the same release counted stays there.
        if before is not None and row.place.rollout in (before.place.rollout, 0):
            for place, gate, sums in _counted(before):
                changes[place, gate] = changes[place, gate].plus(sums, -1)
    _count(session, {where: sums for where, sums in changes.items() if any(sums)})


def _counted(row: _Row) -> Iterable[tuple[Place, str, WaveSums]]:
    """Yield the contributions of a row to the sums of its wave."""
    if not row.place.rollout:
        return
    for awaited in _lacking(row.measured, row.baseline) if row.is_awaited else ():
        yield row.place, awaited, WaveSums(devices=1)
    for gate, sample in row.measured.items():
        if sample.before is None:
            yield row.place, gate, WaveSums(unbased=1)
        else:
            change = sample.value - sample.before
            sums = WaveSums(1, 0, change, change * change, sample.before)
            yield row.place, gate, sums


def _count(session: Session, changes: Mapping[tuple[Place, str], WaveSums]) -> None:
    """Add to sums; always in the same order, so that no two writers lock each other."""
    rows = [
        {**place._asdict(), "gate": gate, **sums._asdict()}
        for (place, gate), sums in sorted(changes.items())
    ]
    if not rows:
        return
    added = upsert(session, WaveMeasureRow)
    summed = {
        name: getattr(WaveMeasureRow, name) + added.excluded[name] for name in WaveSums._fields
    }
    key = [*Place._fields, "gate"]
    statement = added.on_conflict_do_update(index_elements=key, set_=summed)
    session.connection().execute(statement, rows)
