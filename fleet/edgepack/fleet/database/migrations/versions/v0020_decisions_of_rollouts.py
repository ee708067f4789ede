"""What gates decided, what a rollout waits for as one word, and whether waves need evidence."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add the columns; the decisions of earlier rollouts are not known."""
    none = sa.text("''")
    for column in (
        sa.Column("waits_reason", sa.String, nullable=False, server_default=none),
        sa.Column("gate_evidence", sa.String, nullable=False, server_default=sa.text("'required'")),
        sa.Column("decided", sa.Text, nullable=False, server_default=none),
        sa.Column("decided_at", sa.Double, nullable=True),
        sa.Column("stopped_by", sa.String, nullable=False, server_default=none),
    ):
        op.add_column("rollouts", column)
