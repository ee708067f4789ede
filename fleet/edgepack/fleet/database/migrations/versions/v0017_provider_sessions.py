"""Sessions of people whom a provider let in: they showed no token."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Makes room for a name and a role."""
    for name in ("actor", "role"):
        op.add_column(
            "sessions", sa.Column(name, sa.String, nullable=False, server_default=sa.text("''"))
        )
