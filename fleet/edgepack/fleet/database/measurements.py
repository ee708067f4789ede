"""Measurements of devices for a rollout's release, and of the previous releases for comparison.

Each device is compared with itself. Shares and probes are compared with the device's numbers at the
offer; times, memory and temperatures by their values over time, see `changes.py`. The devices that
measured long enough are counted by wave and class in the transaction of each message; so a rollout
reads a few rows for any number of devices until a look is due.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import bindparam, delete, select, tuple_
from sqlalchemy.orm import Session

from edgepack.decoding import json_decoder
from edgepack.fleet.database.measures import PAIR, VALUE_S, ReleaseMeasurements, measures_of
from edgepack.fleet.database.schema import DeviceRow, MeasurementRow, NoiseRow, WaveMeasureRow
from edgepack.fleet.database.upsert import upsert
from edgepack.fleet.documents.gates import BY_NAME, TIMED
from edgepack.wire.reports import Choice
from edgepack.wire.telemetry import Telemetry

COMPARED = "compared"
"""Devices that measured the previous release long enough, counted from the offer on."""
COMMITTED = "committed"
"""Devices that ran another release before and committed this one."""
AWAITED = "awaited"
"""Devices that are compared and committed, and did not yet measure long enough for a look."""
LOOKS = (1, 3, 12, 36, 144)
"""Times of looks in multiples of the first: 10 and 30 minutes, 2, 6 and 24 hours."""
_ALMOST = 0.9
"""Windows end a moment too early."""
_MOST_PAIR = 20.0
"""A pair A/A counts as this multiple of the assumed noise at most: no device spoils the noise."""


class Place(NamedTuple):
    """Place in which a device's measurements are counted."""

    rollout: int
    wave: int
    hardware_class: str


class Offered(NamedTuple):
    """A device that is offered a release.

    Attributes:
        device: Its id.
        place: Wave and class for the counts.
        before: Digest of the device's current release; "" for none.
        choice: The current variant; None for none.
    """

    device: str
    place: Place
    before: str
    choice: Choice | None


class Committed(NamedTuple):
    """A device that committed a release, and with which variant."""

    device: str
    digest: str
    choice: Choice


class Sample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Sample of a device for a gate without values over time.

    `before` is the same of the previous release; None when that is not known.
    """

    value: float
    before: float | None


ClassCounts = dict[str, tuple[Mapping[str, int], ...]]
"""By hardware class: for each wave in order, devices by name: `COMPARED`, `look 0` …"""

_Key = tuple[str, str]


class _Row(NamedTuple):
    place: Place
    before: str
    look_s: float
    is_compared: bool
    told: ReleaseMeasurements
    baseline: dict[str, float]
    measured: dict[str, Sample]


_NAMES = (
    *("device", "digest", "rollout", "wave", "hardware_class", "before", "look_s"),
    *("is_compared", "told", "baseline", "measured"),
)
_ROWS = select(*(getattr(MeasurementRow, name) for name in _NAMES)).where(
    tuple_(MeasurementRow.device, MeasurementRow.digest).in_(bindparam("keys", expanding=True))
)
_COUNTS = select(
    WaveMeasureRow.wave, WaveMeasureRow.hardware_class, WaveMeasureRow.name, WaveMeasureRow.devices
).where(WaveMeasureRow.rollout == bindparam("rollout"))
_MEASUREMENTS = json_decoder(ReleaseMeasurements)
_BASELINE = json_decoder(dict[str, float])
_MEASURED = json_decoder(dict[str, Sample])
_NOWHERE = Place(0, 0, "")
_EMPTY = _Row(_NOWHERE, "", 0.0, False, ReleaseMeasurements(), {}, {})


def look_name(index: int) -> str:
    """Return the name under which devices count that measured long enough for a look."""
    return f"look {index}"


def lasts(told_s: float, wanted_s: float) -> bool:
    """Return True if measurements last long enough."""
    return told_s >= _ALMOST * wanted_s


def note_offered(session: Session, digest: str, offered: Sequence[Offered], look_s: float) -> None:
    """Keep devices' measurements of their current release, and restart the measurements of the
    offered release.
    """
    before = _read(session, [(one.device, one.before) for one in offered if one.before])
    old = _read(session, [(one.device, digest) for one in offered])
    new: dict[_Key, _Row] = {}
    for one in offered:
        row = _EMPTY._replace(place=one.place, look_s=look_s)
        if one.before != digest:  # The same release is compared with nothing.
            told = known.told if (known := before.get((one.device, one.before))) else None
            baseline = told.measures() if told else {}
            row = row._replace(
                before=one.before,
                is_compared=told is not None and lasts(told.timed_s, look_s),
                baseline=baseline | (measures_of(one.choice) if one.choice else {}),
            )
        new[one.device, digest] = row
    _write(session, old, new)


def note_committed(session: Session, committed: Sequence[Committed]) -> None:
    """Count the chosen variants of devices, and the devices to wait for."""
    old = _read(session, [(one.device, one.digest) for one in committed])
    new: dict[_Key, _Row] = {}
    for one in committed:
        row = old.get((one.device, one.digest))
        if row is not None and row.place.rollout:
            measured = row.measured | _samples(measures_of(one.choice), row.baseline)
            new[one.device, one.digest] = row._replace(measured=measured)
    _write(session, old, new)


def take_out(session: Session, device: str, digest: str) -> None:
    """Remove a device's measurements of a release from the counts of its wave, for good."""
    old = _read(session, [(device, digest)])
    _write(session, old, {key: row._replace(place=_NOWHERE) for key, row in old.items()})


def add_windows(
    session: Session,
    windows: Sequence[tuple[str, Telemetry]],
    *,
    value_s: float = VALUE_S,
    now: float | None = None,
) -> None:
    """Add windows, each with its device; every window must be new.

    Args:
        session: The transaction.
        windows: The windows.
        value_s: Seconds of a value.
        now: Seconds since the epoch.
    """
    by_key: dict[_Key, list[Telemetry]] = defaultdict(list)
    for device, window in windows:
        by_key[device, window.digest].append(window)
    old = _read(session, by_key)
    new: dict[_Key, _Row] = {}
    pairs: dict[_Key, tuple[float | None, ...]] = {}
    for key, told in by_key.items():
        row = old.get(key, _EMPTY)
        closed = row.told.closed
        row = row._replace(told=row.told.plus(told, value_s, now))
        if row.place.rollout:
            row = row._replace(measured=row.measured | _samples(row.told.measures(), row.baseline))
        if row.told.closed // PAIR > closed // PAIR:
            pairs[key] = row.told.pair(value_s)
        new[key] = row
    _write(session, old, new)
    _add_noise(session, pairs)


def counts_of(session: Session, rollout: int) -> ClassCounts:
    """Return the counts of a rollout's devices."""
    found: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for wave, hardware_class, name, devices in session.execute(_COUNTS, {"rollout": rollout}):
        found[hardware_class][wave][name] = devices
    return {
        hardware_class: tuple(waves.get(wave, {}) for wave in range(max(waves) + 1))
        for hardware_class, waves in found.items()
    }


def remove(session: Session, devices: Sequence[str]) -> None:
    """Delete measurements of devices; decisions based on these measurements stay."""
    session.execute(delete(MeasurementRow).where(MeasurementRow.device.in_(devices)))


def _samples(measures: Mapping[str, float], baseline: Mapping[str, float]) -> dict[str, Sample]:
    return {
        name: Sample(
            value=value,
            before=0.0 if BY_NAME[name].comparison == "share" else baseline.get(name),
        )
        for name, value in measures.items()
    }


def _read(session: Session, keys: Iterable[_Key]) -> dict[_Key, _Row]:
    asked = list(keys)
    if not asked:
        return {}
    found: dict[_Key, _Row] = {}
    for device, digest, *place_and_rest in session.execute(_ROWS, {"keys": asked}):
        place, (before, look_s, is_compared) = place_and_rest[:3], place_and_rest[3:6]
        told, baseline, measured = place_and_rest[6:]
        found[device, digest] = _Row(
            Place(*place),
            before,
            look_s,
            is_compared,
            _MEASUREMENTS.decode(told),
            _BASELINE.decode(baseline),
            _MEASURED.decode(measured),
        )
    return found


def _write(session: Session, old: Mapping[_Key, _Row], new: Mapping[_Key, _Row]) -> None:
    """Write rows, and count the changes in their waves."""
    if not new:
        return
    rows = [
        {
            "device": key[0],
            "digest": key[1],
            **row.place._asdict(),
            "before": row.before,
            "look_s": row.look_s,
            "is_compared": row.is_compared,
            "told": msgspec.json.encode(row.told).decode(),
            "baseline": msgspec.json.encode(row.baseline).decode(),
            "measured": msgspec.json.encode(row.measured).decode(),
        }
        for key, row in sorted(new.items())
    ]
    added = upsert(session, MeasurementRow)
    kept = {name: added.excluded[name] for name in rows[0] if name not in ("device", "digest")}
    statement = added.on_conflict_do_update(index_elements=["device", "digest"], set_=kept)
    session.connection().execute(statement, rows)
    changes: Counter[tuple[Place, str]] = Counter()
    for key, row in new.items():
        before = old.get(key)
        changes.update((row.place, name) for name in _counted(row))
        # What an earlier rollout of the same release counted stays there.
        if before is not None and row.place.rollout in (before.place.rollout, 0):
            changes.subtract((before.place, name) for name in _counted(before))
    _count(session, {where: devices for where, devices in changes.items() if devices})


def _counted(row: _Row) -> Iterable[str]:
    """Yield the names under which a row counts in its wave."""
    if not row.place.rollout:
        return
    is_committed = "fallbacks" in row.measured and "fallbacks" in row.baseline
    if is_committed:
        yield COMMITTED
    if row.is_compared:
        yield COMPARED
        told_s = row.told.timed_s
        if is_committed and not lasts(told_s, row.look_s):
            yield AWAITED
        for index, multiple in enumerate(LOOKS):
            if lasts(told_s, multiple * row.look_s):
                yield look_name(index)


def _count(session: Session, changes: Mapping[tuple[Place, str], int]) -> None:
    """Add to counts; always in the same order, so that no two writers lock each other."""
    rows = [
        {**place._asdict(), "name": name, "devices": devices}
        for (place, name), devices in sorted(changes.items())
    ]
    _add_to(session, WaveMeasureRow, (*Place._fields, "name"), rows)


def _add_noise(session: Session, pairs: Mapping[_Key, tuple[float | None, ...]]) -> None:
    """Add pairs A/A to the fleet's history, by release, hardware class and gate."""
    if not pairs:
        return
    names = {device for device, _ in pairs}
    query = select(DeviceRow.id, DeviceRow.hardware_class).where(DeviceRow.id.in_(names))
    class_of = {row.id: row.hardware_class for row in session.execute(query)}
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for (device, digest), pair in pairs.items():
        for gate, change in zip(TIMED, pair, strict=True):
            if change is not None:
                most = _MOST_PAIR * BY_NAME[gate].noise
                found[digest, class_of.get(device, ""), gate].append(min(abs(change), most) ** 2)
    key = ("digest", "hardware_class", "gate")
    rows = [
        {**dict(zip(key, where, strict=True)), "pairs": len(squares), "squares": sum(squares)}
        for where, squares in sorted(found.items())
    ]
    _add_to(session, NoiseRow, key, rows)


def _add_to(
    session: Session,
    table: type[WaveMeasureRow | NoiseRow],
    key: Sequence[str],
    rows: Sequence[Mapping[str, object]],
) -> None:
    if not rows:
        return
    added = upsert(session, table)
    summed = {
        name: getattr(table, name) + added.excluded[name] for name in rows[0] if name not in key
    }
    statement = added.on_conflict_do_update(index_elements=list(key), set_=summed)
    session.connection().execute(statement, rows)
