"""Label sets of devices, so that telemetry of similar devices is summed up.

Devices with the same labels share a set. The first `MAX_SETS` are distinguished, and all further
sets are summed together: a label with a different value on each device would make as many sums as
devices.
"""

import hashlib
from collections.abc import Collection, Mapping

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from edgepack.decoding import decode_json
from edgepack.fleet.database.schema import LabelledLatencyRow, LabelSetRow

MAX_SETS = 64
OTHER = 0
"""The set of devices whose labels are not told apart."""
_KNOWN = select(LabelSetRow.digest, LabelSetRow.id)


def find_sets(session: Session, encoded: Collection[str]) -> dict[str, int]:
    """Return the number of each set of labels in the form of `DeviceRow`; store new sets."""
    known = _read(session)
    digests = {one: hashlib.sha256(one.encode()).hexdigest() for one in encoded}
    new = [one for one in sorted(digests) if digests[one] not in known]
    if fits := new[: max(0, MAX_SETS - len(known))]:
        rows = [{"digest": digests[one], "labels": one} for one in fits]
        session.connection().execute(insert(LabelSetRow), rows)
        known = _read(session)
    return {one: known.get(digest, OTHER) for one, digest in digests.items()}


def _read(session: Session) -> dict[str, int]:
    rows = session.execute(_KNOWN)
    return {digest: number for digest, number in rows}  # noqa: C416 (rows are not pairs to mypy)


def read_sets(session: Session) -> Mapping[int, dict[str, str]]:
    """Return the labels of each set, by its number."""
    rows = session.execute(select(LabelSetRow.id, LabelSetRow.labels))
    return {number: decode_json(text, dict[str, str]) for number, text in rows}


def forget_unused(session: Session) -> None:
    """Delete label sets without stored telemetry."""
    used = select(LabelledLatencyRow.label_set).distinct()
    session.execute(delete(LabelSetRow).where(LabelSetRow.id.not_in(used)))
