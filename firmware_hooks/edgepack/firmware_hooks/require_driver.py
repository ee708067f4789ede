"""Hook: the NPU's driver or firmware is there, in a version within a range.

    python -P -m edgepack.firmware_hooks.require_driver --module amdxdna --at-least 1.1 --below 2

A model that was compiled for another driver generation may crash, and the version is known before
the first model byte is fetched: stage `offered`, before.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from edgepack.firmware_hooks.answer import (
    GO,
    REFUSE,
    Answer,
    CommandError,
    HookParser,
    answer_with,
    last_words,
    run_command,
)

_VERSION = re.compile(r"\d+(?:\.\d+)*")


class DriverNotFoundError(Exception):
    """There is no such driver or firmware here, or its version is unknown."""


def parser() -> HookParser:
    """Return the hook's settings."""
    made = HookParser("require_driver", __doc__)
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--module", help="kernel module, read from SYSFS/module/NAME/version")
    where.add_argument(
        "--file", help="version file below SYSFS; * matches, e.g. class/accel/accel*/device/fw_ver"
    )
    where.add_argument(
        "--command", help="command that prints the version, e.g. 'xrt-smi --version'"
    )
    made.add_argument(
        "--pattern",
        type=_pattern,
        default=_VERSION,
        help="regular expression; its first group (or whole match) is the version",
    )
    made.add_argument("--at-least", type=_version, help="lowest version that will do")
    made.add_argument("--below", type=_version, help="first version that will not do any more")
    made.add_argument("--sysfs", type=Path, default=Path("/sys"), help="default: /sys")
    made.add_argument("--timeout-s", type=float, default=10.0, help="of --command; default: 10")
    return made


def decide(settings: argparse.Namespace) -> Answer:
    """Compare every version found with the range."""
    try:
        found = _read_versions(settings)
    except (DriverNotFoundError, CommandError) as error:
        return Answer(REFUSE, f"{error}; needed: {_range(settings)}")
    for source, text in found:
        match = settings.pattern.search(text)
        numbers = _VERSION.search(match.group(1 if match.re.groups else 0) or "") if match else None
        if numbers is None:
            return Answer(REFUSE, f"{source} says no version: {text.strip()[:100]!r}")
        version = _version(numbers.group())
        too_old = settings.at_least is not None and version < settings.at_least
        too_new = settings.below is not None and version >= settings.below
        if too_old or too_new:
            age = "old" if too_old else "new"
            return Answer(REFUSE, f"{source} is {version}, too {age}; needed: {_range(settings)}")
    versions = ", ".join(f"{source} is {text.strip()[:100]}" for source, text in found)
    return Answer(GO, f"{versions}; needed: {_range(settings)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook."""
    return answer_with(parser(), decide, arguments)


class Version(tuple[int, ...]):
    """A dotted version that compares by number, with missing parts as 0: 1.10 > 1.9, 2 == 2.0."""

    __slots__ = ()

    def __str__(self) -> str:
        return ".".join(map(str, self)) or "0"


def _version(text: str) -> Version:
    if not _VERSION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version like 1.2.3")
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return Version(numbers)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression: {error}"
        ) from error


def _range(settings: argparse.Namespace) -> str:
    bounds = []
    if settings.at_least is not None:
        bounds.append(f">= {settings.at_least}")
    if settings.below is not None:
        bounds.append(f"< {settings.below}")
    return " and ".join(bounds) or "any version"


def _read_versions(settings: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (name of the versioned component, text with the version), at least a single pair."""
    if settings.command:
        done = run_command(shlex.split(settings.command), timeout_s=settings.timeout_s)
        if done.returncode != 0:
            raise DriverNotFoundError(f"'{settings.command}' failed: {last_words(done)}")
        return [(f"what '{settings.command}' prints", done.stdout)]
    if settings.module:
        return [_module_version(settings.sysfs / "module" / settings.module.replace("-", "_"))]
    files = sorted(settings.sysfs.glob(settings.file))
    if not files:
        raise DriverNotFoundError(f"there is no file {settings.sysfs / settings.file}")
    return [(f"version in {file}", _read(file)) for file in files]


def _module_version(folder: Path) -> tuple[str, str]:
    if not folder.is_dir():
        raise DriverNotFoundError(f"kernel module {folder.name} is not loaded")
    if not (folder / "version").exists():
        raise DriverNotFoundError(f"kernel module {folder.name} is loaded but states no version")
    return f"kernel module {folder.name}", _read(folder / "version")


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise DriverNotFoundError(f"{file} cannot be read: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
