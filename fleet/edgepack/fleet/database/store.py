"""The database: open, a single writer at a time, and readers that never wait."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from edgepack.durable import make_private
from edgepack.errors import FleetError
from edgepack.fleet.database.audit import ACTOR, CONTROLLER
from edgepack.fleet.database.migrate import migrate

_MIGRATING = 0x65646765
"""Of PostgreSQL's advisory locks, the one that a migration holds."""
_WRITING = 0x65646766
"""The one that a writer holds: those of several controllers take turns, too."""
_CONNECT_TIMEOUT_S = 10
_SESSION = {
    # A controller whose machine vanished in the middle of a transaction keeps nobody waiting long.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


class DatabaseAwayError(FleetError):
    """The database accepts no write now; the request can be repeated.

    Its server does not answer or lacks a resource, such as disk space.
    """


class Store:
    """A database with the fleet's tables.

    Writers take turns: the threads of a process, and the processes that share a PostgreSQL. A
    transaction is durable on return, and messages are sent only afterwards: persist, then act.
    Readers see the last durable state.

    Attributes:
        is_shared: Whether several controllers may use the database.
    """

    def __init__(self, engine: Engine, shown_url: str) -> None:
        self._shown_url = shown_url
        self._engine = engine
        self._reading = engine.execution_options(**_READING[engine.dialect.name])
        self._turn = threading.RLock()
        self.is_shared = engine.dialect.name == "postgresql"
        self._ahead_s = 0.0

    def now(self) -> float:
        """Return the estimated time of the database's clock, seconds since the epoch."""
        return time.time() + self._ahead_s

    def set_clock(self) -> None:
        """Measure the offset of the database's clock to this machine's clock.

        Raises:
            DatabaseAwayError: The database server does not answer.
        """
        if not self.is_shared:
            return
        with self.aside() as session:
            asked = time.time()
            told = float(session.scalar(_CLOCK) or asked)
            self._ahead_s = told - (asked + time.time()) / 2

    @contextmanager
    def transaction(self, by: str = CONTROLLER) -> Iterator[Session]:
        """Yield a session that commits at the end, or rolls back if the body raises.

        Args:
            by: Actor, for the audit log.

        Raises:
            DatabaseAwayError: The database server does not answer.
        """
        with (
            self._turn,
            self._answering(_WRITER_LACKS),
            Session(self._engine, expire_on_commit=False, info={ACTOR: by}) as session,
            session.begin(),
        ):
            if self.is_shared:
                session.execute(_TAKE_TURN)
            yield session

    @contextmanager
    def aside(self) -> Iterator[Session]:
        """Yield a transaction that waits for no other writer, for rows that no other writer
        changes.

        Raises:
            DatabaseAwayError: The database server does not answer.
        """
        with (
            self._answering(_WRITER_LACKS),
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Yield a read-only session with a consistent state from beginning to end.

        Raises:
            DatabaseAwayError: The database server does not answer.
        """
        with (
            self._answering(_READER_LACKS),
            Session(self._reading, expire_on_commit=False) as session,
        ):
            yield session

    @contextmanager
    def _answering(self, lacks: tuple[str, ...]) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if _code(error).startswith(lacks):
                raise DatabaseAwayError(
                    f"the database can take nothing down: {_reason(error)}",
                    found_in=self._shown_url,
                    remedy="make room on its disk, and see to it that it may be written: "
                    "what devices say waits meanwhile",
                ) from error
            # Without a statement it was the connecting that failed.
            is_away = error.connection_invalidated or error.statement is None
            if is_away or _code(error) in _RESTORING:
                raise DatabaseAwayError(
                    f"the database does not answer: {_reason(error)}", found_in=self._shown_url
                ) from error
            raise

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()


_READER_LACKS = (
    *("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_BUSY"),
    *("53", "58"),  # PostgreSQL's classes: insufficient resources, system error
)
"""Errors for which it is the machine that fails, and not what was asked, as their codes begin."""
_WRITER_LACKS = (*_READER_LACKS, "SQLITE_READONLY", "25006")
"""Those, and that nothing may be written: the server may have become a standby."""
_RESTORING = ("40P01", "42P01")
"""PostgreSQL's codes of a deadlock and of a missing table: an operator restores a copy."""
_CLOCK = text("SELECT extract(epoch from clock_timestamp())")
_TAKE_TURN = text(f"SELECT pg_advisory_xact_lock({_WRITING})")
_READING: dict[str, dict[str, Any]] = {
    "sqlite": {"is_reading": True},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


def open_store(url: str, called: str = "edgepack") -> Store:
    """Open a database and brings its tables to this edgepack's version.

    Args:
        url: `sqlite:////folder/fleet.db` or `postgresql://user:password@host/database`.
        called: Name of this program for PostgreSQL.

    Raises:
        FleetError: The URL is malformed or of another kind of database, the driver is missing, the
            database cannot be reached, or a newer edgepack changed the database.
    """
    parsed = _parse(url)
    shown = parsed.render_as_string(hide_password=True)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    if (file := sqlite_file(url)) is not None:
        _protect(file, shown)
    try:
        engine = _sqlite_engine(parsed) if is_sqlite else _postgresql_engine(parsed, called)
    except ModuleNotFoundError as error:
        raise FleetError(
            f"the database driver {error.name} is not installed",
            found_in=shown,
            remedy="pip install 'edgepack[postgresql]'",
        ) from error
    try:
        _prepare(engine, shown)
    except SQLAlchemyError as error:
        raise FleetError(f"cannot open the database: {_reason(error)}", found_in=shown) from error
    store = Store(engine, shown)
    store.set_clock()
    return store


def sqlite_file(url: str) -> Path | None:
    """Return the file of a database; None for a database server or an invalid URL."""
    parsed = _parse(url) if url else None
    if parsed is None or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database).resolve()


def _prepare(engine: Engine, shown_url: str) -> None:
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATING})"))
            migrate(connection, shown_url)
        if engine.dialect.name == "sqlite":
            _use_write_ahead_log(engine)
    except BaseException:
        engine.dispose()
        raise


def _parse(url: str) -> URL:
    example = "--database postgresql://fleet@localhost/fleet"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except ArgumentError as error:
        raise FleetError(f"no database URL: {error}", remedy=example) from error
    if backend not in _READING:
        raise FleetError(
            f"a fleet keeps its data in SQLite or PostgreSQL, not in {backend}", remedy=example
        )
    return parsed.set(drivername="sqlite" if backend == "sqlite" else "postgresql+psycopg")


def _postgresql_engine(url: URL, called: str) -> Engine:
    settings = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    options = {"connect_timeout": _CONNECT_TIMEOUT_S, "options": settings, **url.query}
    # A server that was restarted is noticed before a connection is used.
    return create_engine(
        url, pool_pre_ping=True, connect_args={**options, "application_name": called}
    )


def _protect(file: Path, shown_url: str) -> None:
    """Make the file of a new database, readable for its owner only.

    The database holds the secrets of webhooks. SQLite gives the same mode to the files next to the
    database.

    Raises:
        FleetError: Another user owns the file.
    """
    try:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        for suffix in ("", "-wal", "-shm", "-journal"):
            make_private(Path(f"{file}{suffix}"))
    except OSError as error:
        raise FleetError(
            f"cannot open the database: {error.strerror}",
            found_in=shown_url,
            remedy=f"chown {file} to the user of edgepack fleet serve",
        ) from error


def _sqlite_engine(url: URL) -> Engine:
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, also for changes of tables
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        is_reading = connection.get_execution_options().get("is_reading", False)
        connection.exec_driver_sql(f"PRAGMA query_only={is_reading:d}")
        connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")

    return engine


def _use_write_ahead_log(engine: Engine) -> None:
    """Enable the write-ahead log for good: readers and the writer do not wait for each other."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def _code(error: DBAPIError) -> str:
    """Return the error code of SQLite or PostgreSQL; "" for other errors."""
    names = (getattr(error.orig, name, None) for name in ("sqlite_errorname", "sqlstate"))
    return next(filter(None, names), "")


def _reason(error: SQLAlchemyError) -> str:
    """Return the first line of the driver's message."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]
