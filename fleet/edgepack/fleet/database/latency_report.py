"""Percentiles over any devices and any time, out of the sums by minute, hour and day.

The cost is bounded by the number of sums that are read, and so by the kinds of devices and
releases, never by the number of devices: `LENGTHS_S` has a length for any period.

The sums are of devices of a kind together, so that they do not grow with the fleet. Of a named
device, the newest inferences of each release are kept for the gates, and not by time.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.database.inventory import read_where
from edgepack.fleet.database.label_sets import OTHER, read_sets
from edgepack.fleet.database.latency import LABELLED_S, LENGTHS_S, Sum
from edgepack.fleet.database.latency_parts import KEYS, Key, part_of
from edgepack.fleet.database.measures import FULL_INFERENCES, ReleaseMeasurements
from edgepack.fleet.database.schema import (
    DeviceRow,
    LabelledLatencyRow,
    LatencyRow,
    LatencySourceRow,
    MeasurementRow,
    ReleaseRow,
)
from edgepack.fleet.database.where import attributes, parse_where
from edgepack.fleet.documents.latency import LatencyQuestion, LatencyReport

MAX_DEVICES = 1000
NOTE = (
    f"of each device the newest {FULL_INFERENCES:,} to {2 * FULL_INFERENCES:,} inferences of each "
    "release that it reported in that time"
)


def of_devices(
    session: Session, question: LatencyQuestion, since: float, until: float
) -> LatencyReport:
    """Return the latencies of the devices that an expression names.

    Args:
        session: The transaction.
        question: Which latencies.
        since, until: When a device must have reported a release last, seconds since the epoch.

    Raises:
        FleetError: The question asks for periods of time, or selects too many devices.
    """
    if "time" in question.by:
        raise FleetError(
            "latencies of one device are not kept by time",
            found_in=f"--where {question.where}",
            remedy="leave out --by time, or name a group or a label instead of devices",
        )
    source = LatencySourceRow
    query = (
        select(source, DeviceRow, ReleaseRow, MeasurementRow.told)
        .join(DeviceRow, source.device == DeviceRow.id)
        .join(
            MeasurementRow,
            (MeasurementRow.device == source.device) & (MeasurementRow.digest == source.digest),
        )
        .join(ReleaseRow, source.digest == ReleaseRow.digest)
        .where(source.told_at >= since, source.told_at <= until)
        .order_by(source.told_at)
        .execution_options(yield_per=500)
    )
    if question.model:
        query = query.where(ReleaseRow.name == question.model)
    if question.group:
        query = query.where(DeviceRow.group == question.group)
    where = read_where(session, question.where, also=KEYS)
    # The variant that served last stands for the release: latencies are kept by release alone.
    newest: dict[tuple[str, str], tuple[bool, dict[str, str], str]] = {}
    for row, device, release, told in session.execute(query):
        words = {
            "model": release.name,
            "version": release.version,
            "variant": row.variant,
            "provider": row.provider,
            "hardware_class": row.hardware_class,
            "group": device.group,
            "rollout": f"r{row.rollout}" if row.rollout else "",
        }
        said = {name: frozenset({word}) for name, word in words.items()}
        if where.matches({**attributes(device), **said}):
            newest[device.id, release.digest] = (row.is_simulator, words, told)
        if len({name for name, _ in newest}) > MAX_DEVICES:
            raise FleetError(
                f"--where {question.where} means more than {MAX_DEVICES:,} devices",
                remedy="name a group or a label instead of devices",
            )
    parts: dict[Key, list[Sum]] = defaultdict(list)
    for is_simulator, words, text in newest.values():
        kept = decode_json(text, ReleaseMeasurements)
        both = (kept.older, kept.recent)
        key = tuple(words[name] if name in question.by else "" for name in KEYS)
        parts[is_simulator, key, 0] += [
            Sum(one.failures, one.latency, one.first_tokens) for one in both
        ]
    return LatencyReport(
        since=since,
        until=until,
        step_s=0,
        parts=tuple(part_of(key, sums, question) for key, sums in sorted(parts.items())),
        note=NOTE,
    )


DAY_S = 24 * 3600.0
MAX_STEPS = 200
"""Sums that follow one another and are read of one kind, at most; beyond, longer ones are."""
MAX_ROWS = 20_000
"""Sums that are read at most: about a second."""


def report(session: Session, question: LatencyQuestion, now: float) -> LatencyReport:
    """Return the latency report.

    Args:
        session: The transaction.
        question: Which latencies.
        now: Seconds since the epoch.

    Raises:
        FleetError: The time is invalid, the expression uses unknown dimensions, or there is too
            much to read.
    """
    until = now if question.until is None else question.until
    since = until - DAY_S if question.since is None else question.since
    if not 0 <= since < until:
        raise FleetError("the time ends before it begins", remedy="--since 24h")
    if question.where and "device" in parse_where(question.where).keys:
        return of_devices(session, question, since, until)
    where = _Where(session, question.where) if question.where else None
    is_labelled = where is not None and where.is_of_labels
    length_s = max(_length(since, until, now), LABELLED_S if is_labelled else 0)
    start = int(since // length_s * length_s)
    found = session.execute(
        _of_labels(question, length_s, start, until)
        if is_labelled
        else _rows(question, LatencyRow, length_s, start, until)
    ).all()
    if len(found) > MAX_ROWS:
        raise FleetError(
            f"more than {MAX_ROWS:,} sums would have to be read",
            found_in=f"{(until - start) / 3600:.0f} hours, by sums of {length_s} s",
            remedy="name a --model or a --group, or a shorter time",
        )
    parts: dict[Key, list[Sum]] = defaultdict(list)
    untold = 0
    for row in found:
        words = _words(row[:7])
        is_simulator, at, failures, histogram, first_tokens, *label_set = row[7:]
        if label_set == [OTHER]:
            untold += histogram.count
            continue
        if where is not None and not where.matches(words, *label_set):
            continue
        told = tuple(word if name in question.by else "" for name, word in words.items())
        key = (is_simulator, told, at if "time" in question.by else 0)
        parts[key].append(Sum(failures, histogram, first_tokens))
    return LatencyReport(
        since=float(start),
        until=until,
        step_s=length_s,
        parts=tuple(part_of(key, sums, question) for key, sums in sorted(parts.items())),
        untold=untold,
    )


def _length(since: float, until: float, now: float) -> int:
    """Return the shortest sums that are still kept and are not too many."""
    for length_s, kept_s in sorted(LENGTHS_S.items()):
        if since >= now - kept_s + length_s and (until - since) / length_s <= MAX_STEPS:
            return length_s
    return max(LENGTHS_S)


def _of_labels(
    question: LatencyQuestion, length_s: int, start: int, until: float
) -> Select[*tuple[Any, ...]]:
    query = _rows(question, LabelledLatencyRow, length_s, start, until)
    return query.add_columns(LabelledLatencyRow.label_set)


def _rows(
    question: LatencyQuestion,
    table: type[LatencyRow | LabelledLatencyRow],
    length_s: int,
    start: int,
    until: float,
) -> Select[*tuple[Any, ...]]:
    query = (
        select(
            *(ReleaseRow.name, ReleaseRow.version, table.variant, table.provider),
            *(table.hardware_class, table.device_group, table.rollout),
            *(table.is_simulator, table.start),
            *(getattr(table, name) for name in Sum._fields),
        )
        .select_from(table)
        .outerjoin(ReleaseRow, table.digest == ReleaseRow.digest)
        .where(table.length_s == length_s, table.start >= start, table.start < until)
        .limit(MAX_ROWS + 1)
    )
    if question.model:
        query = query.where(ReleaseRow.name == question.model)
    if question.group:
        query = query.where(table.device_group == question.group)
    return query


def _words(values: Sequence[Any]) -> dict[str, str]:
    *words, rollout = values
    numbered = f"r{rollout}" if rollout else ""
    return dict(zip(KEYS, [*(str(word or "") for word in words), numbered], strict=True))


class _Where:
    """Filter of sums; each kind is evaluated once."""

    def __init__(self, session: Session, text: str) -> None:
        self._where = parse_where(text)
        self._judged: dict[tuple[object, ...], bool] = {}
        self._labels = read_sets(session)
        of_labels = self._where.keys - set(KEYS)
        self.is_of_labels = bool(of_labels)
        known = {name for labels in self._labels.values() for name in labels}
        if unknown := sorted(of_labels - known):
            raise FleetError(
                f"latency is not recorded by {unknown[0]!r}",
                found_in=f"dimensions: {', '.join(KEYS)}; "
                f"labels of devices with latency: {', '.join(sorted(known)) or 'none'}",
                remedy="edgepack fleet devices label DEVICE site=berlin",
            )

    def matches(self, words: dict[str, str], label_set: int = OTHER) -> bool:
        """Return True if sums of that kind are meant, of devices with these labels."""
        key = (label_set, *words.values())
        if key not in self._judged:
            said = {**self._labels.get(label_set, {}), **words}
            self._judged[key] = self._where.matches(
                {name: frozenset({word}) for name, word in said.items()}
            )
        return self._judged[key]
