"""Checks of programs that the agent runs with its own rights: hooks and firmware installers."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.hooks.files import why_not_runnable
from edgepack.agent.hooks.runner import check_hook_folder
from edgepack.agent.hooks.users import find_bundle_user
from edgepack.agent.service.system_commands import run_program
from edgepack.errors import DeviceError
from edgepack.python_child import TimeoutExpired
from edgepack.text import counted

_COUNTERS = ("upgrade_available", "bootcount", "bootlimit")
_COUNTER = re.compile(r"^(\w+)=(\d{1,6})$", re.M)
_TIMEOUT_S = 10.0


def check_hooks(device: Device) -> Iterator[Finding]:
    """Check that each hook is executable and that only the agent's user could replace it."""
    if device.config is None:
        return
    settings = device.config.hooks
    if (settings.folder or device.config.firmware.hook) and not _is_agent_or_root(device):
        yield warn("hooks", "rights depend on the agent's user", "run doctor as root")
        return
    if not settings.folder:
        yield ok("hooks", "the settings name no folder of hooks")
    else:
        try:
            check_hook_folder(Path(settings.folder))
        except DeviceError as error:
            remedy = error.remedy or "correct the hook: edgepack-agent rejects updates until then"
            yield wrong("hooks", f"{error.found_in}: {error.problem}", remedy)
        except OSError as error:
            yield wrong("hooks", f"{settings.folder}: {error.strerror}", "let the agent read it")
        else:
            count = sum(one.is_file() for one in Path(settings.folder).glob("*.d/*"))
            yield ok("hooks", f"{counted(count, 'hook')} in {settings.folder} can run")
    if settings.from_bundles:
        try:
            user = find_bundle_user(settings.user)
        except DeviceError as error:
            yield wrong("hooks", error.problem, error.remedy or "correct hooks.user")
        else:
            yield ok("hooks", f"hooks of bundles run as user {user.name}")


def check_firmware(device: Device) -> Iterator[Finding]:
    """Check the firmware hook, and read the bootloader's counters of a trial."""
    settings = device.config.firmware if device.config else None
    if settings and settings.hook and _is_agent_or_root(device):
        if problem := why_not_runnable(Path(settings.hook)):
            remedy = "correct firmware.hook of the settings, or the file"
            yield wrong("firmware", f"the hook {settings.hook} {problem}", remedy)
        elif not settings.installer:
            yield wrong(
                "firmware", "a hook is set without its kind of artefacts", 'installer = "rauc"'
            )
        else:
            yield ok("firmware", f"{settings.hook} installs {settings.installer} artefacts")
    program = shutil.which("fw_printenv", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        return
    counters = _read_counters(program)
    if not counters:
        return
    shown = ", ".join(f"{name} {value}" for name, value in counters.items())
    if counters.get("upgrade_available"):
        yield warn(
            "firmware",
            f"the running firmware is on trial ({shown})",
            "let the agent commit it: edgepack-agent status; a restart counts as a failed start",
        )
    else:
        yield ok("firmware", f"no trial ({shown})")


def _read_counters(program: str) -> dict[str, int]:
    """Return U-Boot's counters; empty without a readable environment."""
    try:
        # fw_printenv takes a lock file and writes nothing else.
        ended = run_program(program, _COUNTERS, _TIMEOUT_S)
    except (OSError, TimeoutExpired):
        return {}
    found = _COUNTER.findall(ended.stdout[:4096].decode(errors="replace"))
    return {name: int(value) for name, value in found if name in _COUNTERS}


def _is_agent_or_root(device: Device) -> bool:
    """Return True if this process sees files as the agent does."""
    try:
        return os.geteuid() == Path(device.state_dir).stat().st_uid
    except OSError:
        return os.geteuid() == 0
