"""The fixture of the controller's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.fleet.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()
