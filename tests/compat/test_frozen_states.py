"""State folders that agents of every version left are taken over, in whatever state they are."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from edgepack.agent.state.models import model_names
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.agent.update.journal import JOURNAL
from edgepack.bundle.keys import load_public_key
from tests.simulators.bundles import describe_bundle
from tests.simulators.world import World

STATES = Path(__file__).parent / "states"
FROZEN = sorted(STATES.glob("*.tar.gz"))
SHA256 = {
    "format-1": "000b05792e1f92194630ce49ec5303e8466e30cb6c7cdff54e31189614f3684c",
    "format-2": "a969d3bdbf9f179814cbd572ae7ed959f449b5e6cf61b807d1e18b336e021682",
}
"""A frozen folder is never written again; `freeze_state.py` makes the next version's."""
ENDS = {"committed": 7, "downloading": 8, "soaking": 8, "rolling_back": 7}
"""The release of ocr that serves in the end."""


@pytest.fixture(params=FROZEN, ids=lambda path: path.name.removesuffix(".tar.gz"))
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An unpacked corpus: a state folder for each of `ENDS`, the bundle of ocr 8, the key."""
    content = request.param.read_bytes()
    name = request.param.name.removesuffix(".tar.gz")
    assert hashlib.sha256(content).hexdigest() == SHA256[name]
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_there_is_a_frozen_folder_of_every_version() -> None:
    versions = [f"format-{version}" for version in range(1, JOURNAL.version.major + 1)]
    assert [path.name.removesuffix(".tar.gz") for path in FROZEN] == versions == sorted(SHA256)


def boot(frozen: Path, state: str) -> World:
    key = load_public_key(frozen / "release.pub")
    world = World(state_dir=frozen / state, keys=(key,), model="ocr")
    world.link.hold(describe_bundle(frozen / "bundles" / "ocr-8"))
    return world


@pytest.mark.parametrize("state", ENDS)
def test_an_update_goes_on_and_what_serves_keeps_serving(frozen: Path, state: str) -> None:
    world = boot(frozen, state)
    assert world.pointer is not None, "it serves before anything was done"
    world.models.start()
    assert world.settle() == ("ROLLED_BACK" if state == "rolling_back" else "COMMITTED")
    assert world.pointer is not None
    assert world.pointer.bundle.release == ENDS[state]
    assert world.pointer.committed
    assert world.models.troubles == ()


@pytest.mark.parametrize("state", ENDS)
def test_release_counters_are_those_of_before_for_every_model(frozen: Path, state: str) -> None:
    world = boot(frozen, state)
    world.models.start()
    world.settle()
    found = json.loads((world.state_dir / "releases.json").read_text())
    assert found["highest"] == {"det": 9, "ocr": ENDS[state]}


def test_the_way_back_and_the_latencies_are_still_there(frozen: Path) -> None:
    world = boot(frozen, "committed")
    world.models.start()
    assert world.settle() == "COMMITTED"
    assert world.journal.previous is not None
    assert world.journal.previous.bundle.release == 6
    assert "ocr" in model_names(world.state_dir)
    collected = LatencyCollector(world.state_dir).collect()
    assert collected.telemetry == (), "what was told before is not told again"
    assert collected.dropped == ()


def test_a_migration_that_is_interrupted_anywhere_ends_the_same(frozen: Path) -> None:
    world = boot(frozen, "committed")
    for again in range(2):
        world.restart()
        assert world.settle() == "COMMITTED", f"start {again + 2}"
    assert not (world.state_dir / "journal.json").exists()
    assert not (world.state_dir / "active.json").exists()
