"""A fleet's database of every schema so far is brought to today's, with all that was in it.

`databases/schema-1.sql` is the dump of a fleet of two simulated devices as an edgepack from before
migrations left it: one rollout is finished, a second one is paused in its first wave. In
`schema-4.sql` it is three devices, and the rest is the same.
"""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from edgepack.fleet.database import inventory, records
from edgepack.fleet.database.store import open_store
from edgepack.fleet.rollouts import execution, status

DATABASES = Path(__file__).parent / "databases"


def load(path: Path, name: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript((DATABASES / name).read_text())
    connection.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return load(tmp_path / "fleet.db", "schema-1.sql")


def tables(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL"))
    connection.close()
    return found


def test_a_database_from_before_migrations_keeps_all_that_it_knew(path: Path) -> None:
    for _ in range(2):  # the second time there is nothing to change
        store = open_store(f"sqlite:///{path}")
        with store.reading() as session:
            found = inventory.list_devices(session)
            models = [(view.device, model) for view in found for model in view.models]
            running = [(name, model.active.version) for name, model in models if model.active]
            assert running == [("cam-1", "1.0.0"), ("cam-2", "1.0.0")]
            assert [model.state for _, model in models] == ["COMMITTED", "SOAKING"]
            assert len(records.events_after(session, 0, 1000)) == 21
            rollouts = status.list_rollouts(session)
            assert [(view.rollout, view.state, view.counts) for view in rollouts] == [
                ("r2", "PAUSED", {"WAITING": 1, "WORKING": 1}),
                ("r1", "FINISHED", {"COMMITTED": 2}),
            ]
            told = status.show_rollout(session, execution.find(session, "r1")).latency
            assert [(row.is_simulator, row.inferences) for row in told] == [
                (True, 200),
                (True, 200),
            ]
        store.close()


def test_a_database_of_schema_4_keeps_all_that_it_knew(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{load(tmp_path / 'fleet.db', 'schema-4.sql')}")
    with store.reading() as session:
        assert len(records.events_after(session, 0, 1000)) == 26
        rollouts = status.list_rollouts(session)
        assert [(view.rollout, view.state, view.counts) for view in rollouts] == [
            ("r2", "PAUSED", {"WAITING": 2, "WORKING": 1}),
            ("r1", "FINISHED", {"COMMITTED": 3}),
        ]
        told = status.show_rollout(session, execution.find(session, "r1")).latency
        assert [(row.devices, row.inferences) for row in told] == [(2, 400), (1, 200)]
        assert [row.p50_ms for row in told] == pytest.approx([9.204154, 1.513491], abs=1e-6)
    store.close()


def test_a_migration_that_breaks_off_leaves_the_database_as_it_was(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE devices SET reported = '{' WHERE id = 'cam-2'"))
    engine.dispose()
    before = tables(path)
    with pytest.raises(ValueError, match="Expecting property name"):
        open_store(f"sqlite:///{path}")
    assert tables(path) == before


def test_the_first_migration_makes_the_tables_of_that_time(path: Path, tmp_path: Path) -> None:
    from alembic import command
    from alembic.config import Config

    from edgepack.fleet.database import migrate

    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    engine.dispose()
    made = tables(tmp_path / "new.db")
    del made["alembic_version"]
    assert {name: columns(sql) for name, sql in made.items()} == {
        name: columns(sql) for name, sql in tables(path).items()
    }


def columns(sql: str) -> list[str]:
    """The parts of a table's or an index's definition, in whatever order."""
    return sorted(" ".join(part.split()) for part in sql.partition("(")[2].split(", \n"))
