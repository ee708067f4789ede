"""Latency knows whether its provider was simulated; numbers that outgrow 32 bits have 64.

What is there already is marked by what its device last said of itself.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_LONG = {
    "devices": ("report_count", "reported_sequence", "desired_sequence"),
    "releases": ("release", "size_bytes", "manifest_bytes", "signature_bytes"),
    "rollouts": ("min_sample",),
    "assignments": ("sequence",),
    "events": ("id",),
    "telemetry": ("id", "failures"),
}


def upgrade() -> None:
    """Adds the column, fills it, and widens numbers where that makes a difference."""
    op.add_column(
        "telemetry",
        sa.Column("is_simulator", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    telemetry = sa.table(
        "telemetry", *(sa.column(name) for name in ("device", "provider", "is_simulator"))
    )
    for device, provider in _simulated():
        chosen = telemetry.c.device == device
        if provider is not None:
            chosen &= telemetry.c.provider == provider
        op.execute(telemetry.update().where(chosen).values(is_simulator=sa.true()))
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in _LONG.items():
            for column in columns:
                op.alter_column(table, column, type_=sa.BigInteger)
        for table in ("events", "telemetry"):
            op.execute(f"ALTER SEQUENCE {table}_id_seq AS bigint")
    # Programs from before migrations know no other version than 1, and so refuse this one.
    op.execute("UPDATE schema_version SET version = 2")


def _simulated() -> list[tuple[str, str | None]]:
    """Devices and their simulated providers; None stands for all of a simulated device."""
    found: list[tuple[str, str | None]] = []
    rows = op.get_bind().execute(sa.text("SELECT id, reported FROM devices"))
    for device, reported in rows:
        facts = (json.loads(reported) if reported else {}).get("facts") or {}
        if facts.get("os") == "simulated":
            found.append((device, None))
        for provider in facts.get("providers", ()):
            if provider.get("is_simulator"):
                found.append((device, provider["name"]))
    return found
