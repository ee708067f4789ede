"""Whom a rollout offers its release next is found by an index, however many wait."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Makes the index of those that wait; the one of sites is of those that have a site alone."""
    op.drop_index("assignments_by_site", "assignments")
    for name, columns, where in (
        ("assignments_by_site", ["rollout", "site", "state"], sa.text("site != ''")),
        ("assignments_waiting", ["rollout", "wave", "device"], sa.text("state = 'WAITING'")),
    ):
        op.create_index(name, "assignments", columns, sqlite_where=where, postgresql_where=where)
