"""Agents take over the state folders of every released version, in any state."""

import json
import tarfile
from pathlib import Path

import pytest

from edgepack.agent.state.models import model_names
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.update.journal import JOURNAL
from edgepack.bundle.keys import load_public_key
from tests.simulators.bundles import describe_bundle
from tests.simulators.world import World

STATES = Path(__file__).parent / "states"
FROZEN = sorted(STATES.glob("*.tar.gz"))
ENDS = {"committed": 7, "downloading": 8, "soaking": 8, "rolling_back": 7}
"""The release of ocr that serves in the end."""


@pytest.fixture(params=FROZEN, ids=lambda path: path.name.removesuffix(".tar.gz"))
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an unpacked corpus: a folder for each of `ENDS`, the bundle of ocr 8, the key."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_the_present_layout_has_a_frozen_folder() -> None:
    assert f"{JOURNAL.version}.tar.gz" in {path.name for path in FROZEN}


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
    collected = TelemetryBuffer(world.state_dir).collect()
    assert collected.telemetry == (), "what was told before is not told again"
    assert collected.dropped == ()
