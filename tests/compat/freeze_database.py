"""The frozen database of the current version: a dump of a fleet of three devices.

Rollout r1 is finished. Rollout r2 is paused in its first wave after a failure of a device.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from edgepack.wire.reports import Reported
from tests.unit.fleet.world import NEW, OLD, World, says, telemetry_window

DATABASES = Path(__file__).parent / "databases"
DEVICES = ("cam-1", "cam-2", "cam-3")


def freeze_database() -> None:
    """Write the dump of a fleet's database."""
    DATABASES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder))
        with closing(sqlite3.connect(Path(folder) / "fleet.db")) as database:
            (version,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
            dump = "\n".join(database.iterdump())
    (DATABASES / f"{version}.sql").write_text(dump + "\n")


def _fill(folder: Path) -> None:
    world = World(folder)
    for device in DEVICES:
        world.enroll(device)
        world.change(device, labels={"site": "berlin"})
        world.hear(device, says("IDLE"))
    world.start(OLD, soak_s=2.0)
    world.look()
    for device in DEVICES:
        _answer(world, device, says("COMMITTED", active=OLD))
        world.hear(device, replace(telemetry_window(), digest=OLD.digest), "telemetry")
    world.start(NEW, waves="2,100%", max_per_site=3, min_sample=1)
    world.look()
    first, second = [device for device in DEVICES if world.orders(device)[-1].bundle == NEW]
    _answer(world, first, says("SOAKING", active=NEW, previous=OLD))
    _answer(world, second, says("ROLLED_BACK", active=OLD, because="too hot"))
    world.store.close()


def _answer(world: World, device: str, said: Reported) -> None:
    """Report the device's state under its newest order."""
    sequence = world.orders(device)[-1].sequence
    models = {name: replace(model, sequence=sequence) for name, model in said.models.items()}
    world.hear(device, replace(said, sequence=sequence, models=models))
