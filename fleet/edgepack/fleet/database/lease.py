"""Lease in PostgreSQL that elects the leader of several controllers.

The epoch grows with each new leader. A leader checks in each of its transactions that the epoch is
still its own; writers take turns (`Store.transaction`), and so does a process that takes the lease,
so no transaction of an earlier leader becomes durable after that. Time is the database's own:
clocks of the controllers' machines may differ.
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
_EPOCH = select(LeaseRow.epoch).where(_OWN)
_RENEW = (
    update(LeaseRow)
    .where(_OWN, LeaseRow.epoch == bindparam("own_epoch"))
    .values(expires_at=_NOW + bindparam("length_s"))
    .returning(LeaseRow.asked)
)
_STATE = select(LeaseRow.holder, LeaseRow.epoch, LeaseRow.voice, LeaseRow.expires_at < _NOW)
# A leader that hangs may hold its turn as a writer: its sessions are ended, as the last resort that
# they bear its name for.
_END_SESSIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = :holder AND pid != pg_backend_pid()"
)


class LeadLostError(FleetError):
    """Another controller leads: the pending write is discarded."""


class Lease(NamedTuple):
    """A lease that was taken.

    Attributes:
        epoch: Its number, higher than the number of any earlier lease.
        leader_client_id: MQTT client id of the lease holder.
    """

    epoch: int
    leader_client_id: str


def take(session: Session, *, holder: str, leader_client_id: str, length_s: float) -> Lease | None:
    """Take a free or expired lease; return None while another holder has the lease.

    Args:
        session: A transaction that has its turn as a writer.
        holder: The new holder, see `make_holder`; its sessions bear that name.
        leader_client_id: MQTT client id of the leader, stored if the lease has none yet.
        length_s: How long the lease holds.
    """
    changed = {"holder": holder, "epoch": LeaseRow.epoch + 1, "expires_at": _NOW + length_s}
    statement = (
        upsert(session, LeaseRow)
        .values(
            name=_NAME,
            epoch=1,
            asked=0,
            voice=leader_client_id,
            holder=holder,
            expires_at=_NOW + length_s,
        )
        .on_conflict_do_update(
            index_elements=["name"], set_=changed, where=LeaseRow.expires_at < _NOW
        )
        .returning(LeaseRow.epoch, LeaseRow.voice)
    )
    row = session.execute(statement).first()
    return Lease(*row) if row else None


def end_expired(session: Session) -> bool:
    """Return True if the lease is free; end the sessions of a holder with an expired lease.

    Args:
        session: A transaction without a turn as a writer, since an expired session may have the
            turn.
    """
    row = session.execute(_STATE).first()
    if row is None:
        return True
    holder, _, _, has_expired = row
    if has_expired and holder:
        session.execute(_END_SESSIONS, {"holder": holder})
    return bool(has_expired)


def renew(session: Session, epoch: int, length_s: float) -> int:
    """Make the lease last longer.

    Returns:
        How often other controllers have asked the leader for something, since ever.

    Raises:
        LeadLostError: Another controller has the lease.
    """
    asked = session.scalar(_RENEW, {"own_epoch": epoch, "length_s": length_s})
    if asked is None:
        raise LeadLostError("another controller leads")
    return int(asked)


def check(session: Session, epoch: int) -> None:
    """Reject a write of a controller that no longer leads.

    Raises:
        LeadLostError: Another controller leads.
    """
    if session.scalar(_EPOCH) != epoch:
        raise LeadLostError("another controller leads")


def give_up(session: Session, epoch: int) -> None:
    """Release the lease, so that another controller leads at once."""
    session.execute(
        update(LeaseRow).where(_OWN, LeaseRow.epoch == epoch).values(expires_at=0.0, holder="")
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
