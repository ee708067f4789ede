"""All certificates of a device are known until they end; tokens to enrol with."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Makes both tables; of certificates from before, the newest one's number is known."""
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String, primary_key=True),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("pem", sa.Text, nullable=False),
    )
    op.create_index("ix_certificates_device", "certificates", ["device"])
    op.create_table(
        "enrolment_tokens",
        sa.Column("hash", sa.String, primary_key=True),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("key_id", sa.String, nullable=False, server_default=sa.text("''")),
    )
    op.create_index("ix_enrolment_tokens_device", "enrolment_tokens", ["device"])
