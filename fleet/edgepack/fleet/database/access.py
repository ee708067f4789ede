"""Tokens and sessions in the database, stored as digests only."""

import hashlib

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import SessionRow, TokenRow

MAX_TOKENS = 1000


def digest_of(secret: str) -> str:
    """Return the stored digest of a secret; the digest does not reveal the secret.

    The secrets are 256 random bits, so a plain digest cannot be guessed back.
    """
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def find_token(session: Session, token_hash: str, now: float) -> TokenRow | None:
    """Return the token with that digest, unless revoked or expired."""
    row = session.scalars(select(TokenRow).where(TokenRow.hash == token_hash)).one_or_none()
    is_over = row is not None and row.expires_at is not None and row.expires_at <= now
    return None if is_over else row


def list_tokens(session: Session) -> tuple[TokenRow, ...]:
    """Return all tokens that were not revoked, by name."""
    return tuple(session.scalars(select(TokenRow).order_by(TokenRow.name)))


def add_token(session: Session, row: TokenRow) -> None:
    """Take down a token.

    Raises:
        FleetError: The name is taken, or there are too many tokens.
    """
    if session.get(TokenRow, row.name) is not None:
        raise FleetError(
            f"there is a token {row.name!r} already",
            remedy=f"edgepack fleet tokens revoke {row.name}",
        )
    if (session.scalar(select(func.count()).select_from(TokenRow)) or 0) >= MAX_TOKENS:
        raise FleetError(
            f"a fleet has at most {MAX_TOKENS} tokens", remedy="edgepack fleet tokens revoke NAME"
        )
    session.add(row)
    audit.note(session, row.made_at, Entry(action="token.make", because=f"{row.role} {row.name}"))


def revoke_token(session: Session, name: str, now: float) -> TokenRow:
    """Remove a token and its sessions.

    Raises:
        FleetError: There is none of that name.
    """
    row = session.get(TokenRow, name)
    if row is None:
        raise FleetError(f"there is no token {name[:80]!r}", remedy="edgepack fleet tokens")
    session.execute(delete(SessionRow).where(SessionRow.token_hash == row.hash))
    session.delete(row)
    audit.note(session, now, Entry(action="token.revoke", because=f"{row.role} {row.name}"))
    return row


def open_session(session: Session, row: SessionRow, now: float) -> None:
    """Store a session and delete expired sessions."""
    session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
    session.add(row)


def find_session(session: Session, secret: str, now: float) -> SessionRow | None:
    """Return a session; None when expired."""
    row = session.get(SessionRow, digest_of(secret))
    return row if row is not None and row.expires_at > now else None


def close_session(session: Session, secret: str) -> None:
    """End a session."""
    session.execute(delete(SessionRow).where(SessionRow.hash == digest_of(secret)))
