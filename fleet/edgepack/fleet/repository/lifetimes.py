"""Lifetimes of metadata, and the times of renewal."""

import datetime

from edgepack.trust.roles import DIRECTOR, ROOT, SNAPSHOT, TIMESTAMP

DAY_S = 24 * 3600.0
_DAYS = {ROOT: 365.0, TIMESTAMP: 3.0, SNAPSHOT: 30.0, DIRECTOR: 7.0}
_OTHER_DAYS = 365.0
RENEWED_AT = 0.5
"""Share of its life after which what is online is signed anew."""
WARNED_DAYS = 30.0
"""So long before something expires that only a person can sign, it is said."""


def expiry_of(role: str, now: float) -> datetime.datetime:
    """Return the expiry of a role's metadata signed now; whole seconds."""
    moment = int(now + life_days(role) * DAY_S)
    return datetime.datetime.fromtimestamp(moment, datetime.UTC)


def life_days(role: str) -> float:
    """Return how long metadata of a role lives."""
    return _DAYS.get(role, _OTHER_DAYS)


def is_due(role: str, expires: datetime.datetime, now: float) -> bool:
    """Return True if a role is due for a new signature."""
    life_s = life_days(role) * DAY_S
    return expires.timestamp() - now < life_s * (1 - RENEWED_AT)


def days_left(expires: datetime.datetime, now: float) -> float:
    """Return the days until expiry; negative after expiry."""
    return (expires.timestamp() - now) / DAY_S
