"""A bit of a release flips on the controller's disk: reported, never sent, and repaired."""

import errno
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgepack.fleet.documents.rollouts import RolloutSettings
from tests.integration.fleet.conftest import (
    SIMULATED,
    FleetProcess,
    MakeBundle,
    Serve,
    Simulate,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.simulators.faulty_disk import FaultyDisk, build_library
from tests.simulators.waiting import wait_until

MODEL = "model/cpu/model.onnx"
SETTINGS = RolloutSettings(waves="100%", soak_s=0.2, deadline_s=300.0)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_shown(fleet: FleetProcess, words: str) -> bool:
    return any(words in one for one in fleet.info().warnings)


def test_a_bit_that_flipped_in_a_release_is_found_on_read_and_repaired_by_publishing_again(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    simulation(fleet, count=3)
    archive = make_bundle()
    release = fleet.client.publish(archive)
    flip_a_bit(fleet.data / "releases" / release.bundle.digest / MODEL)
    name = fleet.client.start_rollout(release, SIMULATED, SETTINGS).rollout
    wait_until(lambda: damage_shown(fleet, "edgepack publish"), "the damage is a warning")
    (warning,) = fleet.info().warnings
    for word in ("digits 1.0.0", "damaged", "model.onnx", "publish the same file again"):
        assert word in warning
    rollout = fleet.rollout(name)
    assert rollout.state == "RUNNING"
    assert "damaged" in rollout.release_problem
    assert "devices cannot get this release" in edgepack(fleet, "rollout", "status", name).stdout
    secret = (fleet.data / "token").read_text()
    visitor = Visitor(fleet.url).log_in(secret)
    needs = visitor.get("/").text.partition("Needs attention")[2].partition("</section>")[0]
    assert "publish the same file again" in needs
    assert "Devices cannot get this release" in visitor.get(f"/rollouts/{name}").text
    metrics = visitor.get("/metrics", Authorization=f"Bearer {secret}").text
    assert "edgepack_releases_unavailable 1.0" in metrics
    assert "edgepack_releases_damaged_total 1.0" in metrics
    wait_until(lambda: bool(fleet.client.audit(action="release.damaged")), "it is noted")
    published = edgepack(fleet, "publish", str(archive))
    assert published.returncode == 0, published.stderr
    fleet.wait_for(name, "FINISHED")
    assert fleet.rollout(name).counts == {"COMMITTED": 3}
    wait_until(lambda: not fleet.info().warnings, "the warning is gone")
    assert fleet.rollout(name).release_problem == ""
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def test_a_rollout_of_the_same_file_repairs_damage_that_nobody_has_read(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=1)
    archive = make_bundle()
    release = fleet.client.publish(archive)
    flip_a_bit(fleet.data / "releases" / release.bundle.digest / MODEL)
    words = ("--group", "simulated", "--yes", "--soak", "0.2")
    started = edgepack(fleet, "rollout", "start", str(archive), *words)
    assert started.returncode == 0, started.stderr
    fleet.wait_for("r1", "FINISHED")


def test_a_release_that_a_disk_failed_to_read_for_a_moment_is_sent_again(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    """A flipped bit that is put right stands for a disk that returns EIO."""
    fleet = serve()
    simulation(fleet, count=2)
    release = fleet.client.publish(make_bundle())
    flip_a_bit(fleet.data / "releases" / release.bundle.digest / MODEL)
    name = fleet.client.start_rollout(release, SIMULATED, SETTINGS).rollout
    wait_until(lambda: damage_shown(fleet, "edgepack publish"), "the damage is a warning")
    flip_a_bit(fleet.data / "releases" / f"damaged-{release.bundle.digest}" / MODEL)
    fleet.wait_for(name, "FINISHED")
    wait_until(lambda: not fleet.info().warnings, "the warning is gone")
    wait_until(lambda: bool(fleet.client.audit(action="release.restored")), "it is noted")


def test_a_folder_of_releases_that_fails_is_a_warning_and_the_rollout_goes_on_after(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    library = build_library(tmp_path)
    fleet = serve()
    release = fleet.client.publish(make_bundle())
    fleet.stop()
    disk = FaultyDisk(tmp_path / "control", library, fleet.data / "releases")
    fleet.before = ("env", *(f"{name}={value}" for name, value in disk.environment.items()))
    fleet.start()
    disk.fail(errno.EIO, first=0)
    fault = "the folder of releases fails: Input/output error; check the disk"
    wait_until(lambda: damage_shown(fleet, fault), "the fault is a warning")
    started = edgepack(fleet, "publish", str(make_bundle("1.1.0", 2)))
    assert started.returncode != 0
    assert "Input/output error" in started.stderr
    assert "check the disk and its file system" in started.stderr
    simulation(fleet, count=2)
    name = fleet.client.start_rollout(release, SIMULATED, SETTINGS).rollout
    disk.works()
    fleet.wait_for(name, "FINISHED")
    wait_until(lambda: not fleet.info().warnings, "the warning is gone")
    assert "Traceback" not in fleet.log.read_text()


@pytest.mark.parametrize("file", [MODEL, "manifest.json", "model.sig", "golden/golden.npz"])
def test_damage_is_found_in_the_background_while_nobody_reads(
    serve: Serve, make_bundle: MakeBundle, file: str
) -> None:
    fleet = serve()
    archive = make_bundle()
    release = fleet.client.publish(archive)
    fleet.stop()
    path = fleet.data / "releases" / release.bundle.digest / file
    flip_a_bit(path)
    fleet.start()
    wait_until(lambda: damage_shown(fleet, path.name), "the damage is a warning")
    fleet.stop()
    fleet.start()
    wait_until(lambda: damage_shown(fleet, "damaged"), "the damage is a warning after a restart")
    fleet.client.publish(archive)
    wait_until(lambda: not fleet.info().warnings, "the release is whole again")
    assert sorted(one.name for one in (fleet.data / "releases").iterdir()) == [
        release.bundle.digest
    ]


def test_a_damaged_release_with_a_source_is_fetched_again(
    serve: Serve, make_bundle: MakeBundle
) -> None:
    archive = make_bundle()
    handler = partial(SimpleHTTPRequestHandler, directory=str(archive.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            fleet = serve()
            source = f"http://127.0.0.1:{server.server_port}/{archive.name}"
            release = fleet.client.publish(archive, source)
            fleet.stop()
            path = fleet.data / "releases" / release.bundle.digest / MODEL
            good = path.read_bytes()
            flip_a_bit(path)
            fleet.start()
            wait_until(lambda: path.exists() and path.read_bytes() == good, "it is fetched")
            wait_until(lambda: not fleet.info().warnings, "nothing needs a person")
            wait_until(lambda: len(fleet.client.audit(action="release")) == 3, "it is noted")
            acts = [one.action for one in fleet.client.audit(action="release")]
            assert acts == ["release.fetch", "release.damaged", "release.publish"]
        finally:
            server.shutdown()
            thread.join()
