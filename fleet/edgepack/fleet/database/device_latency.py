"""Latencies of devices that are named: the newest inferences of each, not kept by time.

Sums by minute, hour and day are kept for devices of a kind together, so that the sums do not grow
with the fleet. Of each device the newest inferences of each release are kept, for the gates.
"""

from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.database.inventory import read_where
from edgepack.fleet.database.latency import Sum
from edgepack.fleet.database.latency_parts import KEYS, Key, part_of
from edgepack.fleet.database.measures import FULL_INFERENCES, ReleaseMeasurements
from edgepack.fleet.database.schema import (
    DeviceRow,
    LatencySourceRow,
    MeasurementRow,
    ReleaseRow,
)
from edgepack.fleet.database.where import attributes
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
