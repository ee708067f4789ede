"""Devices that a rollout set aside after they alone measured a breach."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the column; no earlier rollout set a device aside."""
    none = sa.text("'[]'")
    op.add_column("rollouts", sa.Column("set_aside", sa.Text, nullable=False, server_default=none))
