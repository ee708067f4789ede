"""Several controllers share a database: who leads, and what the others leave for the leader."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes both tables."""
    op.create_table(
        "leases",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("epoch", _LONG, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("asked", _LONG, nullable=False),
        sa.Column("voice", sa.String, nullable=False),
    )
    op.create_table(
        "unsent",
        sa.Column("id", _LONG, primary_key=True, autoincrement=True),
        sa.Column("device", sa.String, nullable=False),
    )
