"""What devices measure of a release, by wave and hardware class, and the gates that look at it."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_STATES = (
    *("waiting", "offered", "working", "committed"),
    *("failed", "silent", "withdrawn", "recalled"),
)


def upgrade() -> None:
    """Counts the devices of waves by hardware class too, and makes the tables of measurements."""
    none = sa.text("''")
    op.add_column(
        "assignments", sa.Column("hardware_class", sa.String, nullable=False, server_default=none)
    )
    op.rename_table("waves", "waves_before")
    op.create_table(
        "wave_counts",
        sa.Column("rollout", sa.Integer, sa.ForeignKey("rollouts.number"), primary_key=True),
        sa.Column("wave", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("hardware_class", sa.String, primary_key=True),
        *(sa.Column(state, sa.Integer, nullable=False) for state in _STATES),
    )
    names = ", ".join(_STATES)
    op.execute(
        f"INSERT INTO wave_counts (rollout, wave, hardware_class, {names}) "
        f"SELECT rollout, wave, '', {names} FROM waves_before"
    )
    op.drop_table("waves_before")
    op.create_table(
        "measurements",
        sa.Column("device", sa.String, primary_key=True),
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("rollout", sa.Integer, nullable=False),
        sa.Column("wave", sa.Integer, nullable=False),
        sa.Column("hardware_class", sa.String, nullable=False),
        sa.Column("is_awaited", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("told", "baseline", "measured")),
    )
    op.create_table(
        "wave_measures",
        sa.Column("rollout", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("wave", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("hardware_class", sa.String, primary_key=True),
        sa.Column("gate", sa.String, primary_key=True),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("devices", "unbased")),
        *(sa.Column(name, sa.Double, nullable=False) for name in ("total", "squares", "before")),
    )
    for name, default in (("gates", "{}"), ("held", "{}"), ("accepted", "[]")):
        column = sa.Column(name, sa.Text, nullable=False, server_default=sa.text(f"'{default}'"))
        op.add_column("rollouts", column)
    split = sa.Column("split_by", sa.String, nullable=False, server_default=none)
    waits = sa.Column("evidence_s", sa.Double, nullable=False, server_default=sa.text("60.0"))
    for column in (split, waits, sa.Column("evidence_since", sa.Double)):
        op.add_column("rollouts", column)
