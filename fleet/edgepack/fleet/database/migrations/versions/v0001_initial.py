"""The tables of 0.1.0, the first release: later migrations start from these.

A new database is made from `schema.py`, so this revision changes nothing. A released table changes
in `schema.py` and in a new migration for the databases that exist.
"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Leave the database unchanged."""
