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
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edgepack.firmware_hooks.answer import (
    GO,
    REFUSE,
    RETRY,
    Answer,
    CommandError,
    Done,
    HookParser,
    answer_with,
    last_words,
    run_command,
)
from edgepack.firmware_hooks.installers import (
    BOOTLOADERS,
    INSTALLERS,
    OPTIONS,
    SET_ENVIRONMENT,
    WRITE_IMAGE,
    Command,
)

STEPS = ("running", "check", "install", "reboot", "commit", "revert")
_PIECE = 1024 * 1024


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("firmware", __doc__)
    kinds = "; ".join(f"{name}: {row.summary}" for name, row in INSTALLERS.items())
    made.add_argument("--installer", choices=INSTALLERS, required=True, help=kinds)
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
        help="word for the program, e.g. --option=-k --option=/etc/key.pem; can be repeated",
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
        "--slot-variable", default="slot", help="U-Boot's variable of the slot; default: slot"
    )
    made.add_argument(
        "--slot",
        action="append",
        default=[],
        metavar="NAME[=DEVICE]",
        help="value of that variable, for `raw` with the slot's device; give both slots",
    )
    made.add_argument("--fw-setenv", default="fw_setenv", help="default: fw_setenv")
    made.add_argument("--fw-printenv", default="fw_printenv", help="default: fw_printenv")
    made.add_argument("--device", default="", help="fwupd's id of the component")
    made.add_argument(
        "--previous",
        default="",
        help="artefact of the first firmware, for `fwupd`; later the committed release has one",
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
    if settings.step not in STEPS:
        return Answer(REFUSE, f"EDGEPACK_STEP names no step; steps: {', '.join(STEPS)}")
    try:
        return Answer(GO, _Driver(settings, os.environ).run(settings.step))
    except BusyError as error:
        return Answer(RETRY, str(error))
    except (CommandError, OSError) as error:
        return Answer(REFUSE, str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


class BusyError(Exception):
    """The installer does something else now."""


class _Driver:
    """Runs the steps of a row; raises `CommandError` for every failure."""

    def __init__(self, settings: argparse.Namespace, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._row = INSTALLERS[settings.installer]
        self._bootloader = BOOTLOADERS[self._row.bootloader]
        self._wanted = environment.get("EDGEPACK_FIRMWARE_VERSION", "")
        self._previous = environment.get("EDGEPACK_FIRMWARE_PREVIOUS", "")
        self._fields = {
            "program": settings.program or self._row.program,
            "file": environment.get("EDGEPACK_FIRMWARE_FILE", ""),
            "previous_file": environment.get("EDGEPACK_FIRMWARE_PREVIOUS_FILE", "")
            or settings.previous,
            "device": settings.device,
            "variable": settings.slot_variable,
        }

    def run(self, step: str) -> str:
        """Run a step and return what was done, or the version."""
        if self._row.bootloader == "uboot":
            self._fields |= self._read_slots()
        done: str = getattr(self, f"_{step}")()
        return done

    def _running(self) -> str:
        if self._row.version:
            return self._read_component()
        path, key = self._settings.version_file, self._settings.version_key
        found = re.search(rf"^{re.escape(key)}=(.*)$", path.read_text(errors="replace"), re.M)
        version = "".join(shlex.split(found[1])) if found else ""
        if not version:
            raise CommandError(f"{path} has no {key}")
        return version

    def _check(self) -> str:
        self._need(self._fields["file"], "artefact")
        if self._row.way_back == "good slot" and (mark := self._boot_mark()) != "good":
            raise CommandError(f"there is no way back: the running slot is {mark}, not good")
        if self._row.way_back == "artefact":
            self._need(self._fields["previous_file"], "way back: no previous artefact")
        self._call(self._row.check)
        return f"{Path(self._fields['file']).name} can be installed"

    def _install(self) -> str:
        self._need(self._fields["file"], "artefact")
        if self._row.version and self._running() == self._wanted:
            return f"firmware {self._wanted} runs already"
        if self._row.way_back == "second slot":  # The running slot starts if this is cut off.
            self._call([(SET_ENVIRONMENT, "{variable}={running}", "upgrade_available=0")])
        self._call([*self._row.install, *self._bootloader.arm])
        return f"{Path(self._fields['file']).name} is installed and starts next time"

    def _reboot(self) -> str:
        self._call([tuple(shlex.split(self._settings.reboot))])
        return "the device restarts"

    def _commit(self) -> str:
        self._call(self._bootloader.commit)
        if self._row.way_back == "good slot" and (mark := self._boot_mark()) != "good":
            raise CommandError(f"the booted slot was marked good, and is {mark}")
        return "the running firmware is committed"

    def _revert(self) -> str:
        is_back = self._running() == self._previous
        self._call(self._bootloader.stay if is_back else self._bootloader.revert)
        return f"firmware {self._previous} starts next time"

    def _need(self, path: str, what: str) -> None:
        if not Path(path).is_file():
            raise CommandError(f"there is no {what}: {path!r} is not a file")

    def _call(self, commands: Iterable[Command]) -> None:
        """Run commands in order, until a command fails.

        Raises:
            BusyError: The installer does something else now.
            CommandError: A command failed.
            OSError: An image cannot be written.
        """
        for command in commands:
            if command == WRITE_IMAGE:
                self._write_image()
                continue
            if command[0] == SET_ENVIRONMENT:
                self._set_environment([word.format(**self._fields) for word in command[1:]])
                continue
            words: list[str] = []
            for word in command:
                words += self._settings.option if word == OPTIONS else [word.format(**self._fields)]
            done = run_command(words, timeout_s=self._settings.timeout_s)
            output = done.stdout + done.stderr
            said = f"{_name(words)} failed: {_reason(done)}"
            if self._row.busy in output:
                raise BusyError(said)
            if done.returncode != 0 and self._row.success not in output:
                raise CommandError(said)

    def _ask(self, *words: str) -> Done:
        """Run a command that prints, and return what a success printed."""
        done = run_command(words, timeout_s=self._settings.timeout_s)
        if done.returncode != 0:
            raise CommandError(f"{_name(words)} failed: {last_words(done)}")
        return done

    def _boot_mark(self) -> str:
        """Return RAUC's mark of the booted slot."""
        shown = self._ask(self._fields["program"], "status", "--output-format=json").stdout
        try:
            marks = [
                str(slot["boot_status"])
                for entry in json.loads(shown)["slots"]
                for slot in entry.values()
                if slot["state"] == "booted"
            ]
            (mark,) = set(marks)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"RAUC's status names no booted slot: {shown[:200]!r}") from error
        return mark

    def _read_component(self) -> str:
        """Return the version of fwupd's component."""
        words = [word.format(**self._fields) for word in self._row.version]
        try:
            (found,) = (
                one["Version"]
                for one in json.loads(self._ask(*words).stdout)["Devices"]
                if self._settings.device in (one["DeviceId"], *one.get("Guid", ()))
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            because = f"fwupd has no component {self._settings.device!r} with a version"
            raise CommandError(because) from error
        return str(found)

    def _read_slots(self) -> dict[str, str]:
        """Return the fields of a bootloader with slots, from U-Boot's environment.

        Before the restart into a new firmware, the slot in the environment is not the slot that
        runs: then `upgrade_available` is set, and the previous firmware runs.
        """
        devices = dict(map(_pair, self._settings.slot))
        known = self._read_environment()
        slot, back = known.get(self._settings.slot_variable, ""), known.get("edgepack_back", "")
        is_armed = known.get("upgrade_available") == "1" and back in devices
        running = back if is_armed and self._running() == self._previous else slot
        others = [name for name in devices if name != running]
        if len(devices) != 2 or running not in devices:
            raise CommandError(
                f"U-Boot's {self._settings.slot_variable} is {running!a}; give its two values as "
                "--slot"
            )
        return {"running": running, "slot": others[0], "back": back or running} | {
            "target": devices[others[0]]
        }

    def _read_environment(self) -> dict[str, str]:
        """Return U-Boot's environment."""
        shown = self._ask(self._settings.fw_printenv).stdout
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def _set_environment(self, lines: list[str]) -> None:
        """Write variables in a single step, and read the variables back."""
        with tempfile.NamedTemporaryFile("w") as script:
            script.write("".join(f"{line}\n" for line in lines))
            script.flush()
            self._ask(self._settings.fw_setenv, "-s", script.name)
        known = self._read_environment()
        for name, value in map(_pair, lines):
            if known.get(name) != value:
                tool = self._settings.fw_setenv
                raise CommandError(
                    f"U-Boot's {name} is {known.get(name)!a} instead of {value!a}: {tool} -s must "
                    "read lines NAME=VALUE (libubootenv, or U-Boot's own tools from 2019)"
                )

    def _write_image(self) -> None:
        """Copy the artefact to the device of the other slot, and compare.

        Raises:
            CommandError: The device is missing, or differs afterwards.
            OSError: The image does not fit, or the device fails.
        """
        target, source = Path(self._fields["target"]), Path(self._fields["file"])
        if not target.exists():
            raise CommandError(f"slot {self._fields['slot']} has no device: --slot NAME=DEVICE")
        with source.open("rb") as image, target.open("r+b") as device:
            shutil.copyfileobj(image, device, _PIECE)
            device.flush()
            os.fsync(device.fileno())
            image.seek(0)
            device.seek(0)
            while piece := image.read(_PIECE):
                if device.read(len(piece)) != piece:
                    raise CommandError(f"{target} differs from {source.name} after the copy")


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _name(words: Sequence[str]) -> str:
    """Return a command without folders: the agent keeps the first 200 characters of a reason."""
    return f"'{' '.join(word.rpartition('/')[2] or word for word in words[:3])}'"


def _reason(done: Done) -> str:
    """Return the first line that names an error, which later errors follow; else the last line."""
    errors = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
    return errors[0].strip()[:500] if errors else last_words(done)


if __name__ == "__main__":
    sys.exit(main())
