"""Webhooks: where messages are posted, and how far that came."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "webhooks",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("types", sa.Text, nullable=False),
        sa.Column("is_unsafe", sa.Boolean, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("made_by", sa.String, nullable=False),
        sa.Column("audit_after", _LONG, nullable=False),
        sa.Column("event_after", _LONG, nullable=False),
        sa.Column("delivered", _LONG, nullable=False),
        sa.Column("skipped", _LONG, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("next_at", sa.Double, nullable=False),
    )
