"""Lease in PostgreSQL that elects the leader of several controllers.

The epoch grows with each new leader. A leader checks in each of its transactions that the epoch is
still its own; writers take turns (`Store.transaction`), and so does a process that takes the lease,
so no transaction of an earlier leader becomes durable after that. Time is the database's own:
clocks of the controllers' machines may differ.

Each renewal raises a number. A controller that reads a lower number than before has an older copy
of the database: an operator restored the database while the controllers ran. A leader then leads no
longer, until the controller has taken the lease again.
"""

import secrets
from typing import NamedTuple

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.schema import LeaseRow
from edgepack.fleet.database.upsert import upsert

_NAME = "controller"
_NOW = func.extract("epoch", func.clock_timestamp())
_OWN = LeaseRow.name == _NAME
# Statements are made once: to build one takes SQLAlchemy longer than to run it.
# A holder's name is unique: in an older copy, another leader may begin with the same epoch.
_HELD = select(LeaseRow.renewals).where(
    _OWN,
    LeaseRow.epoch == bindparam("own_epoch"),
    LeaseRow.holder == bindparam("own_holder"),
)
_RENEW = (
    update(LeaseRow)
    .where(
        _OWN,
        LeaseRow.epoch == bindparam("own_epoch"),
        LeaseRow.holder == bindparam("own_holder"),
        LeaseRow.renewals >= bindparam("own_renewals"),
    )
    .values(expires_at=_NOW + bindparam("length_s"), renewals=LeaseRow.renewals + 1)
    .returning(LeaseRow.renewals, LeaseRow.asked)
)
_STATE = select(LeaseRow.holder, LeaseRow.renewals, LeaseRow.expires_at < _NOW).where(_OWN)
# A leader that hangs may hold its turn as a writer: its sessions are ended, as the last resort that
# they bear its name for.
_END_SESSIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = :holder AND pid != pg_backend_pid()"
)


_LOST = "another controller leads, or the database was restored from an older copy"


class LeadLostError(FleetError):
    """This controller leads no longer: the pending write is discarded."""


class Lease(NamedTuple):
    """A lease that was taken.

    Attributes:
        holder: Name of the holder.
        epoch: Its number, higher than the number of any earlier lease.
        leader_client_id: MQTT client id of the lease holder.
        renewals: Number of the last renewal; not below `epoch`.
        asked: How often other controllers have asked the leader for something, since ever.
    """

    holder: str
    epoch: int
    leader_client_id: str
    renewals: int
    asked: int


def take(
    session: Session, *, holder: str, leader_client_id: str, length_s: float, above: int = 0
) -> Lease | None:
    """Take a free or expired lease; return None while another holder has the lease.

    Args:
        session: A transaction that has its turn as a writer.
        holder: The new holder, see `make_holder`; its sessions bear that name.
        leader_client_id: MQTT client id of the leader, stored if the lease has none yet.
        length_s: How long the lease holds.
        above: The new epoch is above this number, too.
    """
    number = func.greatest(LeaseRow.renewals, above) + 1
    changed = {
        "holder": holder,
        "epoch": number,
        "renewals": number,
        "expires_at": _NOW + length_s,
    }
    statement = (
        upsert(session, LeaseRow)
        .values(
            name=_NAME,
            epoch=above + 1,
            renewals=above + 1,
            asked=0,
            voice=leader_client_id,
            holder=holder,
            expires_at=_NOW + length_s,
        )
        .on_conflict_do_update(
            index_elements=["name"], set_=changed, where=LeaseRow.expires_at < _NOW
        )
        .returning(
            LeaseRow.holder, LeaseRow.epoch, LeaseRow.voice, LeaseRow.renewals, LeaseRow.asked
        )
    )
    row = session.execute(statement).first()
    return Lease(*row) if row else None


def end_expired(session: Session) -> tuple[bool, int]:
    """End the sessions of a holder with an expired lease.

    Args:
        session: A transaction without a turn as a writer, since an expired session may have the
            turn.

    Returns:
        Whether the lease is free, and the number of the last renewal; 0 for none.
    """
    row = session.execute(_STATE).first()
    if row is None:
        return True, 0
    holder, renewals, has_expired = row
    if has_expired and holder:
        session.execute(_END_SESSIONS, {"holder": holder})
    return bool(has_expired), renewals


def renew(session: Session, held: Lease, length_s: float) -> Lease:
    """Make the lease last longer, and return the renewed lease.

    Raises:
        LeadLostError: Another controller has the lease, or the database is an older copy.
    """
    row = session.execute(
        _RENEW,
        {
            "own_epoch": held.epoch,
            "own_holder": held.holder,
            "own_renewals": held.renewals,
            "length_s": length_s,
        },
    ).first()
    if row is None:
        raise LeadLostError(_LOST)
    return held._replace(renewals=row.renewals, asked=row.asked)


def check(session: Session, held: Lease | None) -> int:
    """Reject a write of a controller that no longer leads; return the epoch.

    Raises:
        LeadLostError: Another controller leads, or the database is an older copy.
    """
    if held is None:
        raise LeadLostError(_LOST)
    own = {"own_epoch": held.epoch, "own_holder": held.holder}
    renewals = session.scalar(_HELD, own)
    if renewals is None or renewals < held.renewals:
        raise LeadLostError(_LOST)
    return held.epoch


def give_up(session: Session, held: Lease) -> None:
    """Release the lease, so that another controller leads at once."""
    session.execute(
        update(LeaseRow)
        .where(_OWN, LeaseRow.epoch == held.epoch, LeaseRow.holder == held.holder)
        .values(expires_at=0.0, holder="")
    )


def ask(session: Session) -> None:
    """Notify the leader of this transaction's changes."""
    session.execute(update(LeaseRow).where(_OWN).values(asked=LeaseRow.asked + 1))


def leader(session: Session) -> str:
    """Return the name of the leader; "" without a leader, or for a single controller."""
    return (session.scalar(select(LeaseRow.holder).where(_OWN)) or "").partition(".")[0]


def make_holder(name: str) -> str:
    """Return the lease holder's name for a controller process, different after a restart.

    PostgreSQL cuts the names of programs after 63 characters.
    """
    return f"{name[:50]}.{secrets.token_hex(4)}"
