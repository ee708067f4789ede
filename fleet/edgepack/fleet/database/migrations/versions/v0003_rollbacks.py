"""A rollout may take a release back."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds the release that is taken back; earlier rollouts took none."""
    op.add_column(
        "rollouts", sa.Column("takes_back", sa.String, nullable=False, server_default=sa.text("''"))
    )
