"""Where a release rests, for controllers that lack its files."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Makes room for a place; of what was published before none is known."""
    op.add_column(
        "releases", sa.Column("source", sa.String, nullable=False, server_default=sa.text("''"))
    )
