"""A fleet on a real PostgreSQL: the controller's own tests, and tests that need a server."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from edgepack.errors import FleetError
from edgepack.fleet.database import devices, enrolment
from edgepack.fleet.database.schema import Base
from edgepack.fleet.database.store import Store, open_store
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate
from tests.integration.fleet.postgresql import PostgreSQL
from tests.unit.fleet.test_controller import *  # noqa: F403 (the same tests, with the world below)
from tests.unit.fleet.world import World


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    return postgresql.empty_database()


@pytest.fixture
def world(tmp_path: Path, url: str) -> Iterator[World]:
    world = World(tmp_path, url=url)
    yield world
    world.store.close()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


def driven(url: str) -> Any:
    return make_url(url).set(drivername="postgresql+psycopg")


def test_a_new_database_has_the_tables_that_the_code_knows(url: str) -> None:
    open_store(url).close()
    engine = create_engine(driven(url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_newer_database_is_refused_and_left_as_it_is(url: str) -> None:
    open_store(url).close()
    engine = create_engine(driven(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0042'"))
    with pytest.raises(FleetError, match="of a newer edgepack: its tables have version 0042"):
        open_store(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "0042"
    engine.dispose()


def test_two_that_open_a_new_database_at_once_make_its_tables_once(url: str) -> None:
    stores: list[Store] = []
    threads = [threading.Thread(target=lambda: stores.append(open_store(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    assert len(stores) == 4
    for store in stores:
        store.close()


def test_readers_do_not_wait_for_the_writer_and_can_change_nothing(store: Store) -> None:
    with store.transaction() as session:
        enrolment.enroll(session, device="a", group="g", now=1.0)
        session.flush()
        with store.reading() as other:
            assert devices.count_devices(other) == (0, 0)
    with pytest.raises(DBAPIError, match="read-only transaction"), store.reading() as session:
        enrolment.enroll(session, device="b", group="g", now=1.0)


def test_a_server_that_is_away_for_a_while_costs_a_rollout_nothing(
    serve: Serve,
    simulation: Simulate,
    make_bundle: MakeBundle,
    mosquitto: Any,
    postgresql: PostgreSQL,
    url: str,
) -> None:
    fleet = serve("--database", url, "--broker", mosquitto.url)
    simulation(fleet, count=3)
    name = fleet.roll_out(make_bundle(), waves="100%", soak_s=0.5)
    fleet.wait_until(lambda: "WORKING" in fleet.rollout(name).counts, "it is under way")
    postgresql.stop()
    try:
        with pytest.raises(FleetError, match="the database does not answer"):
            fleet.rollout(name)
        log = fleet.data.parent / "serve.log"
        fleet.wait_until(lambda: "the controller waits because=" in log.read_text(), "it waits")
    finally:
        postgresql.start()
    assert fleet.wait_for(name, "FINISHED").counts == {"COMMITTED": 3}
    assert "broken" not in fleet.info().counters
