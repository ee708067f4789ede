"""State of devices and their models, in columns for lists and counts by an index.

Both follow from a device's last report and change with the report, in a single transaction.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from sqlalchemy import bindparam, delete, select
from sqlalchemy.orm import Session

from edgepack.agent.watch.table import Symptom
from edgepack.fleet.database.schema import DeviceModelRow
from edgepack.fleet.database.upsert import upsert
from edgepack.wire.reports import Reported, ReportedModel

Standing = Literal["degraded", "failing", "warned", "updating", "settled"]
"""A device of which a model serves degraded; whose last update of a model failed; that warns; that
is updating; none of these."""
STANDINGS: tuple[Standing, ...] = get_args(Standing)

SYMPTOMS, OTHER = frozenset(get_args(Symptom)), "other"
"""Symptoms of devices; a newer device may know more."""
DEGRADED = "DEGRADED"
FAILED_STATES = frozenset({"ROLLED_BACK", "REJECTED"})
SETTLED_STATES = frozenset({"IDLE", "COMMITTED", "REMOVED"})
MAX_MODELS, MAX_NAME, MAX_TEXT = 64, 120, 64
"""Models of one device that are kept track of, and what is kept of each text: devices may say
anything, and an index of PostgreSQL takes no more than 2,700 bytes."""

_COLUMNS = ("state", "digest", "version", "variant", "provider", "is_fallback")
_KNOWN = select(*(getattr(DeviceModelRow, name) for name in ("device", "name", *_COLUMNS))).where(
    DeviceModelRow.device.in_(bindparam("names", expanding=True))
)


def standing_of(reported: Reported) -> Standing:
    """Return the state that a report results in."""
    if any(is_degraded(model) for model in reported.models.values()):
        return "degraded"
    states = {model.state for model in reported.models.values()}
    if states & FAILED_STATES:
        return "failing"
    if reported.warnings:
        return "warned"
    return "settled" if states <= SETTLED_STATES else "updating"


def symptom_of(reported: Reported) -> str:
    """Return the symptom of the first degraded model; "" without one."""
    for model in reported.models.values():
        if model.watch is not None and is_degraded(model):
            return model.watch.symptom if model.watch.symptom in SYMPTOMS else OTHER
    return ""


def is_degraded(model: ReportedModel) -> bool:
    """Check whether the device's watch found a symptom, or serves another variant than wanted."""
    return model.watch is not None and model.watch.state != "WATCHING"


def keep_models(session: Session, heard: Sequence[tuple[str, Reported]]) -> None:
    """Store the devices' releases, if changed.

    Args:
        session: The transaction.
        heard: Devices with their reports, in receive order.
    """
    last = dict(heard)
    if not last:
        return
    rows = session.execute(_KNOWN, {"names": list(last)})
    known = {(device, name): tuple(values) for device, name, *values in rows}
    said = {
        (device, name): _values(model)
        for device, reported in last.items()
        for name, model in list(reported.models.items())[:MAX_MODELS]
        if len(name) <= MAX_NAME
    }
    changed = [
        {"device": key[0], "name": key[1], **dict(zip(_COLUMNS, values, strict=True))}
        for key, values in said.items()
        if known.get(key) != values
    ]
    if changed:
        added = upsert(session, DeviceModelRow)
        statement = added.on_conflict_do_update(
            index_elements=["device", "name"],
            set_={name: added.excluded[name] for name in _COLUMNS},
        )
        session.connection().execute(statement, changed)
    for device, name in known.keys() - said.keys():
        gone = (DeviceModelRow.device == device, DeviceModelRow.name == name)
        session.execute(delete(DeviceModelRow).where(*gone))


def forget_models(session: Session, devices: Iterable[str]) -> None:
    """Remove the models of removed devices."""
    session.execute(delete(DeviceModelRow).where(DeviceModelRow.device.in_(list(devices))))


def _values(model: ReportedModel) -> tuple[str | bool, ...]:
    active = model.active
    texts = [model.state, "", "", "", ""]
    if active is not None:
        bundle, choice = active.bundle, active.choice
        texts[1:] = [bundle.digest, bundle.version, choice.chosen, choice.provider]
    is_fallback = active is not None and active.choice.is_fallback
    return *(text[:MAX_TEXT] for text in texts), is_fallback
