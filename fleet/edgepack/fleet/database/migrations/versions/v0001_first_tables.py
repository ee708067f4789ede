"""The first tables, as programs from before migrations made them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "schema_version", sa.Column("version", sa.Integer, primary_key=True, autoincrement=True)
    )
    op.execute("INSERT INTO schema_version (version) VALUES (1)")
    op.create_table(
        "devices",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("device_group", sa.String, nullable=False, index=True),
        sa.Column("enrolled_at", sa.Double, nullable=False),
        sa.Column("online", sa.Boolean, nullable=False),
        sa.Column("last_seen", sa.Double),
        sa.Column("boot", sa.String, nullable=False),
        sa.Column("report_count", sa.Integer, nullable=False),
        sa.Column("reported", sa.Text),
        sa.Column("reported_sequence", sa.Integer, nullable=False),
        sa.Column("hardware_class", sa.String, nullable=False),
        sa.Column("desired", sa.Text),
        sa.Column("desired_sequence", sa.Integer, nullable=False),
        sa.Column("desired_sent_at", sa.Double, nullable=False),
    )
    op.create_table(
        "releases",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("release", sa.Integer, nullable=False),
        sa.Column("folder", sa.String, nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("manifest_sha256", sa.String, nullable=False),
        sa.Column("manifest_bytes", sa.Integer, nullable=False),
        sa.Column("signature_sha256", sa.String, nullable=False),
        sa.Column("signature_bytes", sa.Integer, nullable=False),
        sa.Column("added_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollouts",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("digest", sa.String, sa.ForeignKey("releases.digest"), nullable=False),
        sa.Column("selector", sa.Text, nullable=False),
        sa.Column("waves", sa.String, nullable=False),
        sa.Column("wave", sa.Integer, nullable=False),
        sa.Column("wave_count", sa.Integer, nullable=False),
        sa.Column("soak_s", sa.Double, nullable=False),
        sa.Column("deadline_s", sa.Double, nullable=False),
        sa.Column("max_failed_share", sa.Double, nullable=False),
        sa.Column("min_sample", sa.Integer, nullable=False),
        sa.Column("on_breach", sa.String, nullable=False),
        sa.Column("accepted_failures", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "assignments",
        sa.Column("rollout", sa.Integer, sa.ForeignKey("rollouts.number"), primary_key=True),
        sa.Column("device", sa.String, sa.ForeignKey("devices.id"), primary_key=True),
        sa.Column("wave", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("sequence", sa.Integer),
        sa.Column("offered_at", sa.Double),
        sa.Column("decided_at", sa.Double),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("before_digest", sa.String, nullable=False),
    )
    op.create_index("assignments_by_device", "assignments", ["device", "sequence"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False, index=True),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("bundle", sa.String, nullable=False),
        sa.Column("from_state", sa.String, nullable=False),
        sa.Column("to_state", sa.String, nullable=False),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("rollout", sa.String, nullable=False),
    )
    op.create_table(
        "telemetry",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False, index=True),
        sa.Column("variant", sa.String, nullable=False),
        sa.Column("provider", sa.String, nullable=False),
        sa.Column("hardware_class", sa.String, nullable=False),
        sa.Column("window_start", sa.Double, nullable=False),
        sa.Column("window_s", sa.Double, nullable=False),
        sa.Column("received_at", sa.Double, nullable=False, index=True),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("histogram", sa.Text, nullable=False),
        sa.UniqueConstraint("device", "digest", "variant", "provider", "window_start"),
    )
