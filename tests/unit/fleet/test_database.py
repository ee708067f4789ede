"""Databases that the controller cannot use are refused with the reason."""

from pathlib import Path

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.database.store import open_store


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    open_store(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE schema_version SET version = 99"))
    engine.dispose()
    with pytest.raises(FleetError, match="tables of version 99, this edgepack needs 1"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "no database URL"),
        ("sqlite:////no/such/folder/fleet.db", "cannot open the database"),
        ("postgresql+psycopg://localhost/x", "driver psycopg is not installed"),
    ],
)
def test_a_database_that_cannot_be_opened_says_why(url: str, problem: str) -> None:
    with pytest.raises(FleetError, match=problem):
        open_store(url)
