"""Numbers of the telemetry that devices sent: no window counts twice, and no device too much.

Controllers share telemetry, so two controllers may receive a device's batches out of order. The
numbers of the last windows are therefore stored individually.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import TelemetrySequenceRow
from edgepack.fleet.database.upsert import upsert
from edgepack.wire.batches import Batch

WIDTH = 62
"""Numbers below the highest one that are remembered: bits of a column."""
_ALL = (1 << WIDTH) - 1
_COLUMNS = ("counted_in", "sequence", "came", "counted_until")


class TelemetrySequence(msgspec.Struct, frozen=True, kw_only=True):
    """State of a device's telemetry.

    Attributes:
        counted_in: The journal or session that the numbers are of.
        sequence: The highest number that came.
        came: Bit i is set if the number `sequence - i` came.
        counted_until: Earliest possible end of the counted inferences, run back to back at full
            speed; seconds since the epoch.
    """

    counted_in: str = ""
    sequence: int = 0
    came: int = 0
    counted_until: float = 0.0

    def of(self, batch: Batch, session: str) -> "TelemetrySequence":
        """Return the state for a batch in a session: of the batch's journal or of the session.

        A device sends each window of a journal until the fleet has it. Everything before the first
        window that arrives of a journal was therefore received once.
        """
        counted_in = batch.journal or session
        if counted_in == self.counted_in:
            return self
        before, came = (batch.sequence - 1, _ALL) if batch.journal else (0, 0)
        return msgspec.structs.replace(self, counted_in=counted_in, sequence=before, came=came)

    def is_new(self, number: int) -> bool:
        """Return whether a number did not come yet, as far as that is remembered."""
        if number > self.sequence:
            return True
        age = self.sequence - number
        return number > 0 and age < WIDTH and not self.came >> age & 1

    def with_number(self, number: int) -> "TelemetrySequence":
        """Note that a number came."""
        if number > self.sequence:
            came = (self.came << min(number - self.sequence, WIDTH) | 1) & _ALL
            return msgspec.structs.replace(self, sequence=number, came=came)
        return msgspec.structs.replace(self, came=self.came | 1 << (self.sequence - number))


def find(session: Session, devices: Collection[str]) -> dict[str, TelemetrySequence]:
    """Return the stored state of devices, by id, and lock the state for this transaction."""
    if not devices:
        return {}
    row = TelemetrySequenceRow
    columns = (getattr(row, name) for name in _COLUMNS)
    query = select(row.device, *columns).where(row.device.in_(devices)).order_by(row.device)
    found = session.execute(query.with_for_update())
    return {
        device: TelemetrySequence(**dict(zip(_COLUMNS, values, strict=True)))
        for device, *values in found
    }


def keep(session: Session, changed: Mapping[str, TelemetrySequence]) -> None:
    """Write the changes."""
    if not changed:
        return
    rows = [
        {"device": name} | {key: getattr(one, key) for key in _COLUMNS}
        for name, one in sorted(changed.items())
    ]
    added = upsert(session, TelemetrySequenceRow)
    kept = {name: added.excluded[name] for name in _COLUMNS}
    statement = added.on_conflict_do_update(index_elements=["device"], set_=kept)
    session.connection().execute(statement, rows)


def remove(session: Session, devices: Sequence[str]) -> None:
    """Forget devices."""
    query = delete(TelemetrySequenceRow).where(TelemetrySequenceRow.device.in_(devices))
    session.execute(query)
