"""Hook: change the device's firmware together with a model, through an installer and a bootloader.

    python -P -m edgepack.firmware_hooks.firmware --installer rauc
    python -P -m edgepack.firmware_hooks.firmware --installer rauc --step commit

The agent runs this hook (`firmware.hook`) with a step in EDGEPACK_STEP. The installers and their
bootloaders are the tables of `installers`; this module drives every row in the same way.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from edgepack.firmware_hooks.answer import (
    GO,
    REFUSE,
    RETRY,
    Answer,
    CommandError,
    HookParser,
    answer_with,
    last_words,
    run_command,
)
from edgepack.firmware_hooks.installers import BOOTLOADERS, INSTALLERS, OPTIONS, Command

STEPS = ("running", "check", "install", "reboot", "commit", "revert")


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("firmware", __doc__)
    made.add_argument("--installer", choices=INSTALLERS, required=True, help="installer")
    made.add_argument(
        "--step",
        choices=STEPS,
        default=os.environ.get("EDGEPACK_STEP"),
        help="default: the agent's",
    )
    made.add_argument("--program", help="path of the installer's program")
    made.add_argument(
        "--option",
        action="append",
        default=[],
        help="option for the program, e.g. --option=--key=/etc/key.pem; can be repeated",
    )
    made.add_argument(
        "--version-file",
        type=Path,
        default=Path("/etc/os-release"),
        help="file of the running firmware with its version; default: /etc/os-release",
    )
    made.add_argument(
        "--version-key", default="IMAGE_VERSION", help="key in that file; default: IMAGE_VERSION"
    )
    made.add_argument(
        "--reboot", default="systemctl reboot", help="command; default: systemctl reboot"
    )
    made.add_argument(
        "--timeout-s",
        type=float,
        default=1700.0,
        help="of each command; less than the agent's firmware.timeout_s; default: 1700",
    )
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Run the step."""
    try:
        if settings.step not in STEPS:
            return Answer(REFUSE, f"EDGEPACK_STEP names no step; steps: {', '.join(STEPS)}")
        return _Driver(settings).run(settings.step)
    except BusyError as error:
        return Answer(RETRY, str(error))
    except CommandError as error:
        return Answer(REFUSE, str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


class BusyError(Exception):
    """The installer does something else now."""


class _Driver:
    """Runs the steps of a row; raises `CommandError` for every failure."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self._settings = settings
        self._row = INSTALLERS[settings.installer]
        self._bootloader = BOOTLOADERS[self._row.bootloader]
        self._file = os.environ.get("EDGEPACK_FIRMWARE_FILE", "")
        self._previous = os.environ.get("EDGEPACK_FIRMWARE_PREVIOUS", "")
        self._fields = {"program": settings.program or self._row.program, "file": self._file}

    def run(self, step: str) -> Answer:
        because: str = getattr(self, f"_{step}")()
        return Answer(GO, because)

    def _running(self) -> str:
        path, key = self._settings.version_file, self._settings.version_key
        try:
            content = path.read_text(errors="replace")
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}") from error
        found = re.search(rf"^{re.escape(key)}=(.*)$", content, re.M)
        version = "".join(shlex.split(found[1])) if found else ""
        if not version:
            raise CommandError(f"{path} has no {key}")
        return version

    def _check(self) -> str:
        self._need_file()
        if self._row.way_back == "good slot" and self._boot_status() != "good":
            raise CommandError(
                f"the running firmware is not marked good, but {self._boot_status()}"
            )
        self._call(self._row.check)
        return f"{self._settings.installer} accepts {Path(self._file).name}"

    def _install(self) -> str:
        self._need_file()
        self._call(self._row.install)
        self._call(self._bootloader.arm)
        return f"{Path(self._file).name} is installed and starts next time"

    def _reboot(self) -> str:
        self._call((tuple(shlex.split(self._settings.reboot)),))
        return "the device restarts"

    def _commit(self) -> str:
        self._call(self._bootloader.commit)
        if self._row.way_back == "good slot" and (status := self._boot_status()) != "good":
            raise CommandError(f"the booted slot was marked good, and is {status}")
        return "the running firmware is committed"

    def _revert(self) -> str:
        is_back = self._running() == self._previous
        self._call(self._bootloader.stay if is_back else self._bootloader.revert)
        return f"firmware {self._previous} starts next time"

    def _need_file(self) -> None:
        if not Path(self._file).is_file():
            raise CommandError(f"there is no artefact {self._file!r}")

    def _call(self, commands: tuple[Command, ...]) -> None:
        """Run commands in order, until a command fails.

        Raises:
            BusyError: The installer does something else now.
            CommandError: A command failed.
        """
        for command in commands:
            words: list[str] = []
            for word in command:
                words += self._settings.option if word == OPTIONS else [word.format(**self._fields)]
            done = run_command(words, timeout_s=self._settings.timeout_s)
            said = f"'{' '.join(words[:3])}' failed: {last_words(done)}"
            if self._row.busy in done.stdout + done.stderr:
                raise BusyError(said)
            if done.returncode != 0 and self._row.idle not in done.stdout + done.stderr:
                raise CommandError(said)

    def _boot_status(self) -> str:
        """Return RAUC's mark of the booted slot."""
        words = [self._fields["program"], "status", "--output-format=json"]
        done = run_command(words, timeout_s=self._settings.timeout_s)
        if done.returncode != 0:
            raise CommandError(f"RAUC did not report its status: {last_words(done)}")
        try:
            marks = {
                str(slot["boot_status"])
                for entry in json.loads(done.stdout)["slots"]
                for slot in entry.values()
                if slot["state"] == "booted"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"RAUC's status is unreadable: {done.stdout[:200]!r}") from error
        if len(marks) != 1:
            raise CommandError(f"RAUC names {len(marks)} marks of booted slots, not one")
        return marks.pop()


if __name__ == "__main__":
    sys.exit(main())
