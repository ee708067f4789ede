"""What devices run and how they stand, found by indexes; who may come in."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Makes the tables; devices fill the first with their next reports."""
    op.add_column(
        "devices", sa.Column("standing", sa.String, nullable=False, server_default=sa.text("''"))
    )
    op.create_index(
        "devices_by_standing",
        "devices",
        ["standing", "online", "desired_sequence", "reported_sequence", "id"],
    )
    op.create_table(
        "device_models",
        sa.Column("device", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("state", "digest", "version", "variant", "provider")
        ),
        sa.Column("is_fallback", sa.Boolean, nullable=False),
    )
    op.create_index(
        "device_models_by_release", "device_models", ["name", "digest", "version", "device"]
    )
    op.create_index("events_by_device", "events", ["device", "id"])
    op.create_index("events_by_rollout", "events", ["rollout", "device", "id"])
    op.create_index("latency_by_release", "latency", ["digest", "length_s", "start"])
    op.create_table(
        "tokens",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("hash", sa.String, nullable=False, unique=True),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("made_by", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String, primary_key=True),
        sa.Column("token_hash", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_index("ix_sessions_token_hash", "sessions", ["token_hash"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
