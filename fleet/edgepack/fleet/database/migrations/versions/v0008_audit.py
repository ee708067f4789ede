"""Who or what acted on the fleet, and on what grounds."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TEXTS = ("actor", "action", "rollout", "device", "model", "digest")


def upgrade() -> None:
    """Makes the table."""
    long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit",
        sa.Column("id", long, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        *(sa.Column(name, sa.String, nullable=False) for name in _TEXTS),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("numbers", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("audit_by_rollout", "audit", ["rollout", "id"])
    op.create_index("audit_by_device", "audit", ["device", "id"])
