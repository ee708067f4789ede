"""Programs of the system that manage services, users and folders."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgepack.errors import DeviceError

TIMEOUT_S = 330.0
"""Longer than a start of the agent may take (`TimeoutStartSec` of the unit)."""
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_TEXT = 1000


def check_systemd() -> None:
    """Check that systemd manages this device.

    Raises:
        DeviceError: Another service manager does.
    """
    if not Path("/run/systemd/system").is_dir():
        raise DeviceError(
            "systemd does not manage this device",
            found_in="/run/systemd/system",
            remedy="let your service manager run `edgepack-agent run` as a user of its own",
        )


def run_program(
    path: str, words: Sequence[str], timeout_s: float
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end, with an environment of its own and no input.

    Raises:
        OSError: It cannot be started.
        TimeoutExpired: It does not end in time.
    """
    return subprocess.run(
        [path, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        check=False,
    )


def run_system_command(program: str, *words: str) -> str:
    """Run a program of the system to its end; return its stdout.

    Args:
        program: Name of the program.
        words: Arguments.

    Raises:
        DeviceError: The program is missing, fails, or does not end in time.
    """
    path = shutil.which(program, path=PATH)
    shown = " ".join((program, *words))
    if path is None:
        raise DeviceError(f"there is no program {program}", remedy="install systemd's programs")
    try:
        ended = run_program(path, words, TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{shown} failed: {error}") from error
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip()[:_MAX_TEXT]
        raise DeviceError(
            f"{shown} failed with exit code {ended.returncode}: {said or 'no message'}",
            remedy="journalctl --unit edgepack-agent shows the log",
        )
    return ended.stdout.decode(errors="replace")
