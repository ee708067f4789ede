"""Bringing a database's tables to this edgepack's version, by Alembic."""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from edgepack.errors import FleetError
from edgepack.fleet.database.schema import Base

log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).with_name("migrations")


def migrate(connection: Connection, shown_url: str) -> None:
    """Make or change the tables, all in the connection's transaction.

    1. Reject a database that a newer edgepack changed before anything is written.
    2. Make all tables of an empty database at once.
    3. Run the migrations that an existing database lacks.

    Args:
        connection: In a transaction of its own.
        shown_url: The database, for messages.

    Raises:
        FleetError: A newer edgepack changed the database, or another program uses the same table
            names.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    # 1.
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise FleetError(
            f"the database is of a newer edgepack: its tables have version {current}, "
            f"this edgepack knows {newest}",
            found_in=shown_url,
            remedy="use the edgepack that changed the database last; nothing was changed",
        )
    # 2.
    if current is None:
        if found := sorted({*inspect(connection).get_table_names()} & {*Base.metadata.tables}):
            raise FleetError(
                f"the database has tables of another program: {', '.join(found)}",
                found_in=shown_url,
                remedy="name an empty database",
            )
        Base.metadata.create_all(connection, checkfirst=False)
        command.stamp(config, "head")
    # 3.
    elif current != newest:
        log.info("database=%s from=%s to=%s", shown_url, current, newest)
        command.upgrade(config, "head")
