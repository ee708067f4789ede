"""The session of each device's signed reports, and the numbers of what it sent in it."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add columns and a table; every device gets its first session with its next report."""
    op.add_column(
        "devices", sa.Column("session", sa.String, nullable=False, server_default=sa.text("''"))
    )
    op.add_column(
        "devices",
        sa.Column("event_count", _LONG, nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "telemetry_sequences",
        sa.Column("device", sa.String, primary_key=True),
        sa.Column("session", sa.String, nullable=False),
        sa.Column("sequence", _LONG, nullable=False),
        sa.Column("came", _LONG, nullable=False),
        sa.Column("counted_until", sa.Double, nullable=False),
    )
