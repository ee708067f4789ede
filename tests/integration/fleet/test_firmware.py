"""Firmware and model as one release: user's commands, real broker, agent and RAUC."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.bundle.manifest import Firmware
from tests.integration.fleet.conftest import Mosquitto, Serve, StartAgent, edgepack
from tests.simulators.bundles import make_bundle
from tests.simulators.firmware_boards import RaucBoard

DEVICE = "cam-1"


@pytest.fixture
def board(tmp_path: Path) -> Iterator[RaucBoard]:
    board = RaucBoard(tmp_path / "board")
    yield board
    board.stop()


def make_release(
    folder: Path, key_prefix: Path, board: RaucBoard, number: int, *, is_wrong: bool = False
) -> Path:
    """Return the archive of a release whose firmware has the release's number."""
    firmware = Firmware(
        installer="rauc",
        compatible="camera",
        version=f"{number}.0",
        file=f"firmware/camera-{number}.0.raucb",
    )
    make_bundle(
        folder / f"release-{number}",
        load_private_key(key_prefix.with_suffix(".key")),
        release=number,
        is_wrong=is_wrong,
        firmware={firmware: board.artefact(firmware.version)},
    )
    archive = folder / f"release-{number}.edgepack"
    pack(folder / f"release-{number}", archive)
    return archive


class RestartingDevice:
    """An agent on a board; the agent ends and starts with the board."""

    def __init__(self, fleet: Any, folder: Path, board: RaucBoard, start: StartAgent) -> None:
        self._fleet, self._board, self._start = fleet, board, start
        fleet.client.enroll(DEVICE, group="cameras", folder=folder, state_dir=folder / "state")
        with (folder / "agent.toml").open("a") as file:
            file.write(
                f'\n[firmware]\nhook = "{board.hook}"\ninstaller = "rauc"\n'
                f'compatible = "camera"\nboot_id_file = "{board.boot_id}"\n'
            )
        self._agent: subprocess.Popen[bytes] = start(fleet, DEVICE)
        fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
        self.restarts = 0

    def run_until(self, is_so: Callable[[], bool]) -> None:
        """Restart the board whenever its hook asks, until something is so."""
        until = time.monotonic() + 300
        while not is_so():
            assert time.monotonic() < until
            if self._board.wants_restart:
                self._agent.terminate()
                self._agent.wait(60)
                self._board.boot()
                self._agent = self._start(self._fleet, DEVICE)
                self.restarts += 1
            time.sleep(0.05)


def test_rollout_changes_firmware_and_model_together_or_neither(
    mosquitto: Mosquitto,
    tmp_path: Path,
    key_prefix: Path,
    serve: Serve,
    start_agent: StartAgent,
    board: RaucBoard,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    device = RestartingDevice(fleet, tmp_path / DEVICE, board, start_agent)

    def roll_out(archive: Path, name: str) -> str:
        done = edgepack(
            fleet,
            *("rollout", "start", str(archive), "--group", "cameras", "--waves", "100%"),
            *("--soak", "0.2", "--deadline", "250", "--gate-evidence", "optional"),
        )
        assert done.returncode == 0, done.stderr
        device.run_until(lambda: fleet.rollout(name).state in ("FINISHED", "PAUSED"))
        return edgepack(fleet, "rollout", "status", name).stdout

    status = roll_out(make_release(tmp_path, key_prefix, board, 2), "r1")
    assert "FINISHED" in status
    assert (board.version, board.is_settled, device.restarts) == ("2.0", True, 1)
    shown = edgepack(fleet, "fleet", "devices", "show", DEVICE).stdout
    assert "firmware 2.0 is committed with it" in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("firmware")] == [
        ["firmware", "2.0"]
    ]

    status = roll_out(make_release(tmp_path, key_prefix, board, 3, is_wrong=True), "r2")
    assert "firmware 2.0 runs again" in " ".join(status.split())
    assert (board.version, board.is_settled, device.restarts) == ("2.0", True, 3)
    (model,) = fleet.client.device(DEVICE).models
    assert model.active.version == "1.2.0"  # type: ignore[union-attr]
    listed = edgepack(fleet, "fleet", "devices", "--where", "firmware=2.0").stdout
    assert DEVICE in listed
