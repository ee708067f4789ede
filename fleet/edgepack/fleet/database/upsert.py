"""Insert or update of rows, in the dialect of the database."""

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import Base


def upsert(session: Session, table: type[Base]) -> postgresql.Insert:
    """Return an `INSERT` that takes `on_conflict_do_update`; SQLite's has the same methods."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    made: postgresql.Insert = (sqlite if is_sqlite else postgresql).insert(table)
    return made
