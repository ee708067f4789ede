"""What a rollout waits for: approval, a start, maintenance windows, room at a site."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Adds the columns."""
    none, zero = sa.text("''"), sa.text("0")
    for name in ("site", "zone"):
        op.add_column(
            "assignments", sa.Column(name, sa.String, nullable=False, server_default=none)
        )
    op.create_index("assignments_by_site", "assignments", ["rollout", "site", "state"])
    columns: tuple[sa.Column[Any], ...] = (
        sa.Column("max_per_site", sa.Integer, nullable=False, server_default=zero),
        sa.Column("approves", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("approved", sa.Integer, nullable=False, server_default=zero),
        sa.Column("not_before", sa.Double),
        sa.Column("window", sa.String, nullable=False, server_default=none),
        sa.Column("zones", sa.Text, nullable=False, server_default=sa.text("'[]'")),
        sa.Column("waits_for", sa.Text, nullable=False, server_default=none),
    )
    for column in columns:
        op.add_column("rollouts", column)
