"""A database of every released schema is migrated to the present schema, with its content."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine

from edgepack.fleet.database import inventory, records
from edgepack.fleet.database.schema import Base
from edgepack.fleet.database.store import open_store
from edgepack.fleet.rollouts import status

FROZEN = sorted((Path(__file__).parent / "databases").glob("*.sql"))


@pytest.mark.parametrize("dump", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_keeps_its_content_and_gets_the_present_tables(
    dump: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fleet.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(dump.read_text())
    for _ in range(2):  # The second time there is nothing to change.
        store = open_store(f"sqlite:///{path}")
        with store.reading() as session:
            found = inventory.list_devices(session)
            states = {view.device: [model.state for model in view.models] for view in found}
            assert list(states) == ["cam-1", "cam-2", "cam-3"]
            assert sorted(states.values()) == [["COMMITTED"], ["ROLLED_BACK"], ["SOAKING"]]
            assert {view.labels["site"] for view in found} == {"berlin"}
            rollouts = status.list_rollouts(session)
            assert [(view.rollout, view.state, view.counts) for view in rollouts] == [
                ("r2", "PAUSED", {"WAITING": 1, "WORKING": 1, "FAILED": 1}),
                ("r1", "FINISHED", {"COMMITTED": 3}),
            ]
            assert rollouts[0].settings.max_per_site == 3
            events = records.events_after(session, 0, 1000)
            assert events[-1].to_state == "PAUSED"
        store.close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_the_present_schema_has_a_frozen_database(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'fleet.db'}").close()
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as database:
        (version,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    assert version in {path.stem for path in FROZEN}
