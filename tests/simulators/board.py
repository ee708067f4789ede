"""A board with two firmware slots and a bootloader that falls back, without hardware.

The board keeps the promises of the contract of firmware hooks, and breaks each on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgepack.agent.hooks.firmware import FirmwareStep, parse_version
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.halt import Halt


class Moments(Protocol):
    """Counts moments at which the power may be cut."""

    def moment(self) -> None: ...


@dataclass
class Board:
    """The durable part of a board.

    Attributes:
        slots: Version in each of the two slots; "" for an incomplete image.
        running: Slot that runs.
        primary: Slot that starts next time.
        good: Slots that the bootloader trusts.
        trials: Slots on trial, each with the starts left.
        boots: Starts of the device.
        is_going_down: Whether a restart was requested.
        image_version: Version that every artefact really has.
        is_stuck: Whether the device ignores the request to restart.
        boot_id: Content of the boot id's file after every start; None for a good file.
        is_dead: Whether a new firmware does not start, so that the bootloader falls back.
        ignores_revert: Whether a revert changes nothing.
        answers: By step: next verdicts in place of the board's own.
        asked: Steps in order.
        facts: Facts of the last call of each step.
    """

    slots: list[str] = field(default_factory=lambda: ["1.0", ""])
    running: int = 0
    primary: int = 0
    good: set[int] = field(default_factory=lambda: {0})
    trials: dict[int, int] = field(default_factory=dict)
    boots: int = 1
    is_going_down: bool = False
    image_version: str = "2.0"
    is_dead: bool = False
    ignores_revert: bool = False
    is_stuck: bool = False
    boot_id: str | None = None
    answers: dict[str, list[HookVerdict]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    facts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return self.slots[self.running]

    @property
    def is_settled(self) -> bool:
        """True if the firmware that runs starts next time, too, and is not on trial."""
        return self.primary == self.running and self.running in self.good

    def start(self) -> None:
        """Start as a bootloader does: a slot on trial gets a single start."""
        self.is_going_down = False
        self.boots += 1
        if self.primary not in self.good:
            left = self.trials.get(self.primary, 0)
            if left < 1 or self.is_dead:
                self.primary = next(iter(self.good))
            else:
                self.trials[self.primary] = left - 1
        self.running = self.primary


class SimulatedFirmware:
    """The firmware hook of an agent's process on a board."""

    noun, starter, basis = "firmware", "bootloader", "firmware"

    def __init__(self, board: Board, faults: Moments) -> None:
        self._board = board
        self._faults = faults
        self.version = board.version

    def read_boot(self) -> str:
        fixed = self._board.boot_id
        return f"boot {self._board.boots}" if fixed is None else fixed

    def run(self, step: FirmwareStep, facts: Mapping[str, str], _halt: Halt) -> HookVerdict:
        board = self._board
        board.asked.append(step)
        board.facts[step] = facts
        self._faults.moment()
        answers = board.answers.get(step, [])
        verdict = answers.pop(0) if answers else _said(board.version)
        if verdict.verdict == "go":
            getattr(self, f"_{step}")(facts)
        self._faults.moment()
        if step == "running" and verdict.verdict == "go":
            self.version = parse_version(verdict.output)
        return verdict

    def _running(self, _facts: Mapping[str, str]) -> None:
        pass

    def _check(self, facts: Mapping[str, str]) -> None:
        assert Path(facts["firmware_file"]).read_bytes().startswith(b"image")

    def _install(self, _facts: Mapping[str, str]) -> None:
        board, other = self._board, 1 - self._board.running
        board.primary = board.running
        board.slots[other] = ""
        board.good.discard(other)
        self._faults.moment()
        board.slots[other] = board.image_version
        board.trials[other] = 1
        board.primary = other

    def _reboot(self, _facts: Mapping[str, str]) -> None:
        self._board.is_going_down = not self._board.is_stuck

    def _commit(self, _facts: Mapping[str, str]) -> None:
        self._board.good.add(self._board.running)

    def _revert(self, facts: Mapping[str, str]) -> None:
        board = self._board
        if board.ignores_revert:
            board.good.add(board.running)
            return
        back = board.slots.index(facts["firmware_previous"])
        board.primary = back
        board.good = {back}


def _said(output: str) -> HookVerdict:
    return HookVerdict(verdict="go", hook="", exit_code=0, output=f"{output}\n", because="")
