"""The database: opening it, and transactions that one thread at a time holds."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import create_engine, event, select
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.schema import SCHEMA_VERSION, Base, SchemaRow


class Store:
    """A database with the fleet's tables.

    One process writes; its threads take turns. A transaction is durable when it returns, and
    nobody is told anything before that: persist, then act.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that is committed at the end, or rolled back when the body raises."""
        with (
            self._turn,
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def close(self) -> None:
        """Gives all connections back."""
        self._engine.dispose()


def open_store(url: str) -> Store:
    """Opens a database and makes the tables that it lacks.

    Args:
        url: SQLAlchemy's: `sqlite:///fleet.db`, `postgresql+psycopg://…`.

    Raises:
        FleetError: The URL is malformed, its driver is missing, the database cannot be reached,
            or its tables are of another version of edgepack.
    """
    try:
        parsed = make_url(url)
        shown = parsed.render_as_string(hide_password=True)
        engine = create_engine(parsed)
    except (ArgumentError, NoSuchModuleError) as error:
        raise FleetError(
            f"no database URL: {error}", remedy="--database sqlite:////var/lib/edgepack/fleet.db"
        ) from error
    except ModuleNotFoundError as error:
        raise FleetError(
            f"the database driver {error.name} is not installed",
            found_in=shown,
            remedy=f"pip install {error.name}",
        ) from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    try:
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            version = session.scalar(select(SchemaRow.version))
            if version is None:
                version = SCHEMA_VERSION
                session.add(SchemaRow(version=version))
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise FleetError(f"cannot open the database: {cause}", found_in=shown) from error
    if version != SCHEMA_VERSION:
        raise FleetError(
            f"the database has tables of version {version}, this edgepack needs {SCHEMA_VERSION}",
            found_in=shown,
            remedy="use the edgepack that made it, or name a new one with --database",
        )
    return Store(engine)


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        # Readers and the writer do not wait for each other; a commit survives a power cut.
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA busy_timeout=10000")
        cursor.close()
