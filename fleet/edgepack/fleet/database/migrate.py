"""Bringing a database's tables to this edgepack's version, by Alembic."""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from edgepack.errors import FleetError

log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).with_name("migrations")


def migrate(connection: Connection, shown_url: str) -> None:
    """Makes or changes the tables, all in the connection's transaction.

    1. A database that a newer edgepack changed is refused before anything is written.
    2. One from before migrations has the first tables already.
    3. What is missing up to this edgepack's version is carried out in order.

    Args:
        connection: In a transaction of its own.
        shown_url: The database, for messages.

    Raises:
        FleetError: The database is of a newer edgepack.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    noted = MigrationContext.configure(connection).get_current_revision()
    current = noted or _before_migrations(connection)
    # 1.
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise FleetError(
            f"the database is of a newer edgepack: its tables are of version {current}, "
            f"this edgepack knows {scripts.get_current_head()}",
            found_in=shown_url,
            remedy="use the edgepack that changed it last; it was left as it is",
        )
    # 2.
    if current is not None and noted is None:
        command.stamp(config, current)
    # 3.
    if current != scripts.get_current_head():
        log.info("database=%s from=%s to=%s", shown_url, current, scripts.get_current_head())
        command.upgrade(config, "head")


def _before_migrations(connection: Connection) -> str | None:
    if not inspect(connection).has_table("schema_version"):
        return None
    return f"{connection.scalar(text('SELECT version FROM schema_version')):04}"
