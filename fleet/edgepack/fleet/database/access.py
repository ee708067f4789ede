"""Tokens and sessions in the database: digests of them, never themselves."""

import hashlib

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import SessionRow, TokenRow


def digest_of(secret: str) -> str:
    """What is kept of a secret; whoever knows the digest does not know the secret.

    The secrets are 256 random bits, so a plain digest cannot be guessed back.
    """
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def find_token(session: Session, token_hash: str, now: float) -> TokenRow | None:
    """The token with that digest, unless it was revoked or is over."""
    row = session.scalars(select(TokenRow).where(TokenRow.hash == token_hash)).one_or_none()
    is_over = row is not None and row.expires_at is not None and row.expires_at <= now
    return None if is_over else row


def open_session(
    session: Session, secret: str, token_hash: str, expires_at: float, now: float
) -> None:
    """Takes down a session; those that are over are forgotten."""
    session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
    session.add(SessionRow(hash=digest_of(secret), token_hash=token_hash, expires_at=expires_at))


def token_of_session(session: Session, secret: str, now: float) -> str | None:
    """The digest of the token that a session was opened with; None when it is over."""
    row = session.get(SessionRow, digest_of(secret))
    return row.token_hash if row is not None and row.expires_at > now else None


def close_session(session: Session, secret: str) -> None:
    """Ends a session."""
    session.execute(delete(SessionRow).where(SessionRow.hash == digest_of(secret)))
