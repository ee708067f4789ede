"""Latency is summed up by the labels of devices, too, by hour and by day."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Makes both tables; what was told before is in neither."""
    op.create_table(
        "label_sets",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("digest", sa.String, nullable=False, unique=True),
        sa.Column("labels", sa.Text, nullable=False),
    )
    op.create_table(
        "labelled_latency",
        *(
            sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)
            for name in ("label_set", "rollout")
        ),
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("digest", "device_group", "hardware_class", "provider", "variant")
        ),
        sa.Column("is_simulator", sa.Boolean, primary_key=True),
        sa.Column("length_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start", _LONG, primary_key=True, autoincrement=False),
        sa.Column("failures", _LONG, nullable=False),
        sa.Column("histogram", sa.Text, nullable=False),
    )
    op.create_index("labelled_latency_by_age", "labelled_latency", ["length_s", "start"])
