"""Latency of real inferences, in histograms that are summed up by minute, hour and day.

A device's window is added to three rows, for each length, shared by like devices with the same
release; so a percentile over any devices and any time reads a few rows for any number of devices.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, delete, func, select, tuple_
from sqlalchemy.orm import Session

from edgepack.errors import TransferError
from edgepack.fleet.database import label_sets
from edgepack.fleet.database.reports import simulated_providers
from edgepack.fleet.database.schema import (
    AssignmentRow,
    DeviceRow,
    LabelledLatencyRow,
    LatencyRow,
    LatencySourceRow,
    ReleaseRow,
    RolloutRow,
)
from edgepack.fleet.database.upsert import upsert
from edgepack.wire.histogram import check, empty, merge
from edgepack.wire.telemetry import Histogram, Telemetry

log = logging.getLogger(__name__)

DAY_S = 24 * 3600
LENGTHS_S = {60: DAY_S, 3600: 30 * DAY_S, DAY_S: 400 * DAY_S}
"""Lengths of what is summed up, seconds, each with how long it is kept."""

LABELLED_S = 3600
"""Sums of this length and longer are kept by labels, too."""
MAX_SOURCES = 256
"""Releases and variants that one device may tell of; each takes rows of its own."""
MAX_TOLD = 2**40
"""Inferences, failures or milliseconds of one window, at most: 34 years. What a device claims
beyond that would outgrow the sums, and spoil what others told."""
UNKNOWN = "other"
"""Name of the model of a release that the fleet does not have."""


class Kind(NamedTuple):
    """Key of latencies that are summed up, by columns of `LatencyRow`."""

    rollout: int
    digest: str
    device_group: str
    hardware_class: str
    provider: str
    variant: str
    is_simulator: bool


class Place(NamedTuple):
    """Key of a row: dimensions, length (seconds) and start (seconds since the epoch).

    `label_set` is the set of a `LabelledLatencyRow`, None for a `LatencyRow`.
    """

    kind: Kind
    length_s: int
    start: int
    label_set: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """By the columns of `_KEY`, or of `_LABELLED_KEY`."""
        own = (*self.kind, self.length_s, self.start)
        return own if self.label_set is None else (self.label_set, *own)


class Source(NamedTuple):
    """Source of latencies, by the key of `LatencySourceRow`."""

    device: str
    digest: str
    variant: str
    provider: str


class Added(NamedTuple):
    """Added window of a device.

    Attributes:
        device: Id of the device.
        window: The window.
        kind: Key of the sums.
        model, version: Name of the release; "other" and "" if the fleet has no such release.
    """

    device: str
    window: Telemetry
    kind: Kind
    model: str
    version: str


class Sum(NamedTuple):
    """Sum of latencies, and of the times to the first token of texts."""

    failures: int = 0
    histogram: Histogram = empty()
    first_tokens: Histogram = empty()


def add_sums(sums: Iterable[Sum]) -> Sum:
    """Return the sum of sums."""
    kept = list(sums)
    return Sum(
        sum(one.failures for one in kept),
        merge(one.histogram for one in kept),
        merge(one.first_tokens for one in kept),
    )


_Sums = LatencyRow | LabelledLatencyRow
# Statements are made once: to build one takes SQLAlchemy longer than to run it.
_FACTS = select(
    *(DeviceRow.id, DeviceRow.group, DeviceRow.hardware_class, DeviceRow.reported),
    DeviceRow.labels,
).where(DeviceRow.id.in_(bindparam("names", expanding=True)))
_GIVEN = (
    select(AssignmentRow.device, RolloutRow.digest, func.max(RolloutRow.number))
    .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
    .where(AssignmentRow.device.in_(bindparam("names", expanding=True)))
    .group_by(AssignmentRow.device, RolloutRow.digest)
)
_NAMES = select(ReleaseRow.digest, ReleaseRow.name, ReleaseRow.version).where(
    ReleaseRow.digest.in_(bindparam("digests", expanding=True))
)
_SEEN = select(*(getattr(LatencySourceRow, name) for name in Source._fields)).where(
    LatencySourceRow.device.in_(bindparam("names", expanding=True))
)
_KEY = (*Kind._fields, "length_s", "start")
_LABELLED_KEY = ("label_set", *_KEY)


def _sums(table: type[_Sums], key: Sequence[str]) -> Select[*tuple[Any, ...]]:
    columns = tuple(getattr(table, name) for name in key)
    return select(*columns, *(getattr(table, name) for name in Sum._fields)).where(
        tuple_(*columns).in_(bindparam("places", expanding=True))
    )


_SUMS = _sums(LatencyRow, _KEY)
_LABELLED_SUMS = _sums(LabelledLatencyRow, _LABELLED_KEY)


def check_window(told: Telemetry) -> None:
    """Check a device's reported window.

    Raises:
        TransferError: Its numbers contradict each other, or are beyond all that can be.
    """
    for one in filter(None, (told.latency, told.first_tokens)):
        check(one)
        if max(one.count, one.sum_ms) > MAX_TOLD:
            raise TransferError(f"a window counts more than {MAX_TOLD} inferences or milliseconds")
    if told.failures > MAX_TOLD:
        raise TransferError(f"a window counts more than {MAX_TOLD} inferences or milliseconds")
    if told.not_finite + told.bad_inputs > told.latency.count:
        raise TransferError("a window counts more inferences that are not finite than inferences")


def add_telemetry(
    session: Session, windows: Sequence[tuple[str, Telemetry]], now: float
) -> list[Added]:
    """Add windows, each with its device; skip windows of too many sources.

    Returns:
        The added windows.
    """
    if not windows:
        return []
    facts = _facts(session, windows)
    kinds = _kinds(session, windows, facts)
    digests = {"digests": list({told.digest for _, told in windows})}
    names = {digest: (name, version) for digest, name, version in session.execute(_NAMES, digests)}
    sets = label_sets.find_sets(session, {one.labels for one in facts.values()})
    seen = _seen(session, facts)
    told_of = Counter(source.device for source in seen)
    parts: dict[Place, list[Sum]] = defaultdict(list)
    labelled: dict[Place, list[Sum]] = defaultdict(list)
    taken: list[Added] = []
    for device, told in windows:
        source = Source(device, told.digest, told.variant, told.provider)
        if source not in seen:
            if told_of[device] >= MAX_SOURCES:
                log.warning("device=%s window dropped because=it tells of too much", device)
                continue
            told_of[device] += 1
            seen.add(source)
        kind = kinds[source]
        taken.append(Added(device, told, kind, *names.get(told.digest, (UNKNOWN, ""))))
        # A clock that is a day off says nothing of when it was.
        own = Sum(told.failures, told.latency, told.first_tokens or empty())
        at = told.window_start if now - DAY_S <= told.window_start <= now else now
        for length_s in LENGTHS_S:
            place = Place(kind, length_s, int(at // length_s * length_s))
            parts[place].append(own)
            if length_s >= LABELLED_S:
                place = place._replace(label_set=sets[facts[device].labels])
                labelled[place].append(own)
    _add(session, LatencyRow, _SUMS, _KEY, parts)
    _add(session, LabelledLatencyRow, _LABELLED_SUMS, _LABELLED_KEY, labelled)
    _remember(session, kinds, taken, now)
    return taken


def forget_old(session: Session, now: float) -> None:
    """Remove rows older than their retention time."""
    for length_s, kept_s in LENGTHS_S.items():
        for table in (LatencyRow, LabelledLatencyRow):
            old = (table.length_s == length_s, table.start < now - kept_s)
            session.execute(delete(table).where(*old))
    label_sets.forget_unused(session)
    longest = max(LENGTHS_S.values())
    session.execute(delete(LatencySourceRow).where(LatencySourceRow.told_at < now - longest))


class _Facts(NamedTuple):
    """Facts of a device that reports latency."""

    group: str
    hardware_class: str
    simulated: frozenset[str]
    labels: str


def _facts(session: Session, windows: Sequence[tuple[str, Telemetry]]) -> dict[str, _Facts]:
    names = {"names": list({device for device, _ in windows})}
    return {
        device: _Facts(group, hardware_class, simulated_providers(reported), labels)
        for device, group, hardware_class, reported, labels in session.execute(_FACTS, names)
    }


def _kinds(
    session: Session, windows: Sequence[tuple[str, Telemetry]], facts: Mapping[str, _Facts]
) -> dict[Source, Kind]:
    """Return the kind of each source's windows: with the newest rollout of its release."""
    names = {"names": list(facts)}
    given = session.execute(_GIVEN, names)
    rollouts = {(device, digest): number for device, digest, number in given}
    found: dict[Source, Kind] = {}
    for device, told in windows:
        known = facts[device]
        found[Source(device, told.digest, told.variant, told.provider)] = Kind(
            rollout=rollouts.get((device, told.digest), 0),
            digest=told.digest,
            device_group=known.group,
            hardware_class=known.hardware_class,
            provider=told.provider,
            variant=told.variant,
            is_simulator=told.provider in known.simulated,
        )
    return found


def _seen(session: Session, devices: Iterable[str]) -> set[Source]:
    """Return the known sources of devices."""
    return {Source(*key) for key in session.execute(_SEEN, {"names": list(devices)})}


def _add(
    session: Session,
    table: type[_Sums],
    asking: Select[*tuple[Any, ...]],
    key: Sequence[str],
    parts: Mapping[Place, Sequence[Sum]],
) -> None:
    if not parts:
        return
    before: dict[tuple[object, ...], Sum] = {}
    for row in session.execute(asking, {"places": [it.key for it in parts]}):
        before[tuple(row[: len(key)])] = Sum(*row[len(key) :])
    rows = [
        dict(zip(key, where.key, strict=True))
        | add_sums((before.get(where.key, Sum()), *added))._asdict()
        for where, added in parts.items()
    ]
    _write(session, table, rows, key, Sum._fields)


def _remember(
    session: Session,
    kinds: Mapping[Source, Kind],
    taken: Sequence[Added],
    now: float,
) -> None:
    changing = ("rollout", "hardware_class", "is_simulator", "told_at")
    sources = {
        Source(one.device, window.digest, window.variant, window.provider)
        for one in taken
        for window in (one.window,)
    }
    rows = [
        source._asdict()
        | {
            "rollout": kinds[source].rollout,
            "hardware_class": kinds[source].hardware_class,
            "is_simulator": kinds[source].is_simulator,
            "told_at": now,
        }
        for source in sorted(sources)
    ]
    _write(session, LatencySourceRow, rows, Source._fields, changing)


def _write(
    session: Session,
    table: type[_Sums | LatencySourceRow],
    rows: Sequence[Mapping[str, object]],
    key: Sequence[str],
    changing: Sequence[str],
) -> None:
    if not rows:
        return
    added = upsert(session, table)
    changed = {name: added.excluded[name] for name in changing}
    statement = added.on_conflict_do_update(index_elements=list(key), set_=changed)
    session.connection().execute(statement, rows)
