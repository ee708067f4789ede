"""A tuned release reaches a real agent as the delta that its bundle carries."""

import sys
from pathlib import Path

from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.rollouts import Selector
from tests.integration.fleet.conftest import FleetProcess, Serve
from tests.simulators import warm_programs
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle

WEIGHT_BYTES = WIDTH * WIDTH * 4
CAMERAS = Selector(kind="group", group="cameras")


def test_a_device_that_runs_the_older_release_is_sent_the_delta(
    serve: Serve, key_prefix: Path, tmp_path: Path
) -> None:
    key = load_private_key(key_prefix.with_suffix(".key"))
    one = make_bundle(tmp_path / "one", key, release=1)
    two = make_bundle(tmp_path / "two", key, release=2, tuned_from=one)

    fleet, folder = serve(), tmp_path / "cam-1"
    fleet.client.enroll("cam-1", group="cameras", folder=folder, state_dir=folder / "state")
    with (folder / "agent.log").open("a") as log:
        agent = warm_programs.Popen(
            [sys.executable, "-m", "edgepack.agent.cli", "run", "--config", folder / "agent.toml"],
            stdout=log,
            stderr=log,
        )
    try:
        fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
        assert _sent_by(fleet, one, tmp_path) > 2 * WEIGHT_BYTES
        assert _sent_by(fleet, two, tmp_path) < 0.8 * WEIGHT_BYTES
    finally:
        agent.terminate()
        agent.wait(400)
    assert "patched_bytes=262" in (folder / "agent.log").read_text(), "the whole weight"


def _sent_by(fleet: FleetProcess, bundle: ExampleBundle, folder: Path) -> int:
    """Return the bytes that the depot sends for a rollout that every device commits."""
    archive = folder / f"{bundle.ref.version}.edgepack"
    pack(bundle.folder, archive)
    before = sum(fleet.info().sent_bytes.values())
    done = fleet.wait_for(fleet.roll_out(archive, to=CAMERAS, waves="100%"), "FINISHED", "PAUSED")
    assert done.counts == {"COMMITTED": 1}, done
    return sum(fleet.info().sent_bytes.values()) - before
