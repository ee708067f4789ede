"""Devices have labels and a certificate that can be revoked; releases can be deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds the columns; certificates that were given out before are not known."""
    op.add_column(
        "devices", sa.Column("labels", sa.Text, nullable=False, server_default=sa.text("'{}'"))
    )
    op.add_column(
        "devices", sa.Column("certificate", sa.String, nullable=False, server_default=sa.text("''"))
    )
    op.add_column("releases", sa.Column("deleted_at", sa.Double))
