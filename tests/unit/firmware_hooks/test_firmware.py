"""The firmware hook with real installers, run as the agent runs the hook: every step, and kills."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from edgepack.agent.hooks.firmware import FirmwareHook, FirmwareStep
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.firmware_hooks.answer import GO, REFUSE, Answer, last_words, run_command
from edgepack.firmware_hooks.firmware import STEPS, decide, parser
from edgepack.firmware_hooks.installers import BOOTLOADERS, INSTALLERS
from tests.simulators import firmware_boards
from tests.simulators.firmware_boards import BOARDS, Board


class Bench:
    """A board with its hook, and an artefact of a newer firmware."""

    def __init__(self, board: Board, folder: Path) -> None:
        self.board = board
        self.file = folder / "artefact"
        self.file.write_bytes(board.artefact(board.new))

    def run(self, step: FirmwareStep) -> Answer:
        """Run a step in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.facts().items():
                patch.setenv(f"EDGEPACK_{name.upper()}", value)
            return decide(parser().parse_args([*self.board.arguments, f"--step={step}"]))

    def spawn(self, step: FirmwareStep) -> HookVerdict:
        """Run a step as the agent does."""
        hook = FirmwareHook(self.board.hook, timeout_s=300, boot_id_file=self.board.boot_id)
        return hook.run(step, self.facts())

    def facts(self) -> dict[str, str]:
        return {
            "firmware_file": str(self.file),
            "firmware_version": self.board.new,
            "firmware_previous": self.board.old,
        }

    def go(self, *steps: FirmwareStep) -> None:
        for step in steps:
            answer = self.run(step)
            assert answer.exit_code == GO, f"{step}: {answer.because}"
            if step == "reboot":
                assert self.board.wants_restart
                self.board.boot()

    def expect(self, version: str, *, is_settled: bool = True) -> None:
        """Check the running firmware, and whether the firmware is on trial."""
        assert self.run("running").because == self.board.version == version
        assert self.board.is_settled == (is_settled or not self.board.has_trial)

    def boot(self, version: str) -> None:
        """Start again, and check that a firmware runs that starts next time, too."""
        self.board.boot()
        self.expect(version)


@pytest.fixture(params=BOARDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    board = BOARDS[request.param](tmp_path / "board")
    yield Bench(board, tmp_path)
    board.stop()


def test_every_row_has_a_board_and_a_bootloader() -> None:
    assert set(BOARDS) == set(INSTALLERS)
    assert {row.bootloader for row in INSTALLERS.values()} == set(BOOTLOADERS)


def test_installer_keeps_the_contract(bench: Bench) -> None:
    old, new = bench.board.old, bench.board.new
    # 1. Installed twice and taken back before the restart.
    bench.expect(old)
    bench.go("check", "install", "install", "revert", "revert")
    bench.boot(old)
    # 2. On trial: a crash falls back. The way back can run then, too.
    bench.go("install", "reboot")
    bench.expect(new, is_settled=False)
    if bench.board.has_trial:
        bench.board.boot()
        bench.go("running", "revert")
        bench.boot(old)
        bench.go("install", "reboot")
    # 3. Taken back from the new firmware.
    bench.go("revert", "revert")
    bench.boot(old)
    # 4. Committed, once and again.
    bench.go("install", "reboot", "commit", "commit")
    bench.boot(new)
    # 5. Taken back after the commit, or refused.
    if bench.board.can_revert_commit:
        bench.go("revert")
        bench.boot(old)
    else:
        bench.go("revert")
        bench.boot(new)


def test_damaged_or_missing_artefact_changes_nothing(bench: Bench) -> None:
    content = bytearray(bench.file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    bench.file.write_bytes(content)
    if bench.board.is_signed:
        assert REFUSE in (bench.run("check").exit_code, bench.run("install").exit_code)
    bench.file.unlink()
    for step in ("check", "install"):
        assert "there is no artefact" in bench.run(step).because
    bench.boot(bench.board.old)


@pytest.mark.parametrize(
    ("installer", "reason"),
    [("rauc", "Compatible mismatch"), ("swupdate", "HW compatibility not found")],
)
def test_refusal_of_another_board_names_the_reason(
    installer: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = BOARDS[installer](tmp_path / "board")
    monkeypatch.setattr(firmware_boards, "KIND", "another-board")
    slot = tmp_path / "slots" / ("5" * 64) / "firmware"
    slot.mkdir(parents=True)
    try:
        assert reason in Bench(board, slot).spawn("install").because
    finally:
        board.stop()


def test_process_that_an_installer_leaves_behind_holds_up_no_answer() -> None:
    done = run_command(["sh", "-c", "sleep 20 & echo 'error: wrong board'; exit 1"], timeout_s=5)
    assert (done.returncode, last_words(done)) == (1, "error: wrong board")


@pytest.mark.parametrize("step", ["install", "commit", "revert"])
def test_hook_killed_before_any_command_leaves_a_firmware_that_starts(
    bench: Bench, step: FirmwareStep
) -> None:
    old, new = bench.board.old, bench.board.new
    for number in range(1, 9):
        if step != "install":
            bench.go("install", "reboot")
        bench.board.kill_at(number)
        verdict = bench.spawn(step)
        bench.board.kill_at(0)
        if verdict.verdict == "go":
            break
        assert "SIGKILL" in verdict.because
        if step == "install":
            bench.board.boot()
            if bench.board.version == new:  # The installation had ended.
                bench.expect(new, is_settled=False)
                bench.go("revert")
        elif step == "commit":
            bench.go("commit")
            bench.boot(new)
            if not bench.board.can_revert_commit:
                break
            bench.go("revert")
        else:
            bench.go("revert")
        bench.boot(old)


def test_steps_are_those_of_the_contract() -> None:
    assert get_args(FirmwareStep) == STEPS
