"""Waves count their devices by state; what a rollout waits for is found by an index."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_STATES = (
    *("waiting", "offered", "working", "committed"),
    *("failed", "silent", "withdrawn", "recalled"),
)


def upgrade() -> None:
    """Makes the counters, and counts what is there."""
    op.create_table(
        "waves",
        sa.Column("rollout", sa.Integer, sa.ForeignKey("rollouts.number"), primary_key=True),
        sa.Column("wave", sa.Integer, primary_key=True, autoincrement=False),
        *(sa.Column(state, sa.Integer, nullable=False) for state in _STATES),
    )
    sums = ", ".join(f"sum(CASE WHEN state = '{s.upper()}' THEN 1 ELSE 0 END)" for s in _STATES)
    op.execute(
        f"INSERT INTO waves (rollout, wave, {', '.join(_STATES)}) "
        f"SELECT rollout, wave, {sums} FROM assignments GROUP BY rollout, wave"
    )
    op.create_index("assignments_by_state", "assignments", ["rollout", "state", "offered_at"])
    op.create_index("ix_devices_online", "devices", ["online"])
