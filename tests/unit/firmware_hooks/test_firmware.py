"""The firmware hook with real installers, run as the agent runs the hook: every step, and kills."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.hooks.firmware import FirmwareHook
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.firmware_hooks.firmware import STEPS
from edgepack.firmware_hooks.installers import BOOTLOADERS, INSTALLERS
from tests.simulators.rauc_board import FirmwareBoard, RaucBoard

BOARDS = {"rauc": RaucBoard}


class Bench:
    """A board with its hook, and an artefact of firmware 2.0."""

    def __init__(self, board: FirmwareBoard, folder: Path) -> None:
        self.board = board
        self.file = folder / "artefact"
        self.file.write_bytes(board.artefact("2.0"))
        self.hook = FirmwareHook(board.hook, timeout_s=60, boot_id_file=board.boot_id)

    def run(self, step: str) -> HookVerdict:
        facts = {"firmware_file": str(self.file), "firmware_previous": "1.0"}
        assert step in STEPS
        return self.hook.run(step, facts)  # type: ignore[arg-type]

    def go(self, *steps: str) -> None:
        for step in steps:
            verdict = self.run(step)
            assert verdict.verdict == "go", f"{step}: {verdict.output}"
            if step == "reboot":
                assert self.board.wants_restart
                self.board.boot()

    def running(self) -> str:
        self.go("running")
        assert self.hook.version == self.board.version
        return self.hook.version


@pytest.fixture(params=BOARDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    board = BOARDS[request.param](tmp_path / "board")
    yield Bench(board, tmp_path)
    board.stop()


def test_every_row_has_a_board_and_a_bootloader() -> None:
    assert set(BOARDS) == set(INSTALLERS)
    assert {row.bootloader for row in INSTALLERS.values()} == set(BOOTLOADERS)


def test_firmware_is_installed_on_trial_and_committed(bench: Bench) -> None:
    assert bench.running() == "1.0"
    bench.go("check", "install", "install", "reboot")
    assert bench.running() == "2.0"
    assert not bench.board.is_settled
    bench.go("commit", "commit")
    assert bench.board.is_settled
    bench.board.boot()
    assert bench.running() == "2.0"


def test_firmware_on_trial_falls_back_and_the_way_back_can_run_again(bench: Bench) -> None:
    bench.go("check", "install", "reboot")
    bench.board.boot()
    assert bench.running() == "1.0"
    bench.go("revert", "revert")
    bench.board.boot()
    assert bench.running() == "1.0"
    assert bench.board.is_settled


@pytest.mark.parametrize("before", [("install",), ("install", "reboot")])
@pytest.mark.parametrize("committed", [False, True])
def test_revert_leads_back_from_everywhere(
    bench: Bench, before: tuple[str, ...], committed: bool
) -> None:
    bench.go(*before, *(["commit"] if committed and "reboot" in before else []))
    bench.go("revert", "revert")
    bench.board.boot()
    assert bench.running() == "1.0"
    assert bench.board.is_settled


def test_damaged_artefact_is_refused_before_the_first_byte(bench: Bench) -> None:
    content = bytearray(bench.file.read_bytes())
    content[-50] ^= 1
    bench.file.write_bytes(content)
    assert bench.run("check").verdict == "refuse"
    bench.file.unlink()
    for step in ("check", "install"):
        assert "there is no artefact" in bench.run(step).because
    assert bench.running() == "1.0"
    bench.board.boot()
    assert bench.running() == "1.0"
