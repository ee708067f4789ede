"""A rollout may ask for real inferences before a device commits."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Adds how many it asks for; earlier rollouts asked for none."""
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column(
        "rollouts",
        sa.Column("min_inferences", kind, nullable=False, server_default=sa.text("0")),
    )
