"""Databases: rejected databases, writers and readers, and complete transactions."""

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import OperationalError

from edgepack.errors import FleetError
from edgepack.fleet.database import devices, enrolment
from edgepack.fleet.database.migrate import SCRIPTS
from edgepack.fleet.database.schema import Base
from edgepack.fleet.database.store import Store, open_store


def change(path: Path, *statements: str) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.db"
    open_store(f"sqlite:///{path}").close()
    return path


def test_a_database_of_a_newer_edgepack_is_refused_and_left_as_it_is(path: Path) -> None:
    change(path, "UPDATE alembic_version SET version_num = '0042'")
    before = path.read_bytes()
    newest = max(path.name[1:5] for path in (SCRIPTS / "versions").glob("v*.py"))
    with pytest.raises(FleetError) as refusal:
        open_store(f"sqlite:///{path}")
    assert str(refusal.value).splitlines() == [
        "the database is of a newer edgepack: its tables have version "
        f"0042, this edgepack knows {newest}",
        f"  found in: sqlite:///{path}",
        "  try: use the edgepack that changed the database last; nothing was changed",
    ]
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == ["fleet.db"]


def test_another_programs_database_is_left_as_it_is(path: Path) -> None:
    change(path, "DROP TABLE alembic_version", "DROP TABLE unsent")
    engine = create_engine(f"sqlite:///{path}")
    before = inspect(engine).get_table_names()
    with pytest.raises(FleetError, match="tables of another program: assignments"):
        open_store(f"sqlite:///{path}")
    assert inspect(engine).get_table_names() == before
    engine.dispose()


def test_a_new_database_has_the_tables_that_the_code_knows(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "no database URL"),
        ("mysql://localhost/x", "in SQLite or PostgreSQL, not in mysql"),
        ("sqlite:////no/such/folder/fleet.db", "cannot open the database: unable to open"),
        ("postgresql://127.0.0.1:9/x", "cannot open the database: connection failed"),
    ],
)
def test_a_database_that_cannot_be_opened_says_why(url: str, problem: str) -> None:
    with pytest.raises(FleetError, match=problem):
        open_store(url)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(FleetError) as refusal:
        open_store("postgresql://fleet:secret@127.0.0.1:9/x")
    assert "secret" not in str(refusal.value)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 'fleet.db'}")


def count(store: Store) -> int:
    with store.reading() as session:
        return devices.count_devices(session)[0]


def test_readers_do_not_wait_for_the_writer_and_see_what_is_durable(store: Store) -> None:
    is_writing, may_end = threading.Event(), threading.Event()

    def write() -> None:
        with store.transaction() as session:
            enrolment.enroll(session, device="a", group="g", now=1.0)
            session.flush()
            is_writing.set()
            may_end.wait(400)

    writer = threading.Thread(target=write)
    writer.start()
    assert is_writing.wait(400)
    assert count(store) == 0, "a reader that waited would never come here"
    may_end.set()
    writer.join(400)
    assert count(store) == 1
    store.close()


def test_a_reader_sees_one_state_from_beginning_to_end(store: Store) -> None:
    with store.reading() as session:
        before = devices.count_devices(session)
        with store.transaction() as other:
            enrolment.enroll(other, device="a", group="g", now=1.0)
        assert devices.count_devices(session) == before
    assert count(store) == 1
    store.close()


def test_a_reader_can_change_nothing(store: Store) -> None:
    with pytest.raises(OperationalError, match="readonly"), store.reading() as session:
        enrolment.enroll(session, device="a", group="g", now=1.0)
    with store.transaction() as session:
        enrolment.enroll(session, device="a", group="g", now=1.0)
    assert count(store) == 1
    store.close()


def test_the_driver_of_postgresql_is_named_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(FleetError, match="driver psycopg is not installed") as refusal:
        open_store("postgresql://localhost/x")
    assert refusal.value.remedy == "pip install 'edgepack[postgresql]'"
