"""Installation of the agent as a service of systemd: unit, users, folders.

A package of the system brings the same three files in `/usr/lib`; then nothing is written here.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.service.system_commands import check_systemd, run_system_command
from edgepack.durable import write_file
from edgepack.errors import DeviceError

UNIT = "edgepack-agent.service"
PACKAGED_PROGRAM = "/usr/bin/edgepack-agent"
"""Program of the unit as a package of the system installs it."""
USER, GROUP = "edgepack", "models"
_SOURCES = Path(__file__).parent
_ETC, _USR, _RUNTIME = Path("/etc"), Path("/usr/lib"), Path("/run/edgepack")
FILES = {
    UNIT: Path("systemd/system", UNIT),
    "edgepack.sysusers": Path("sysusers.d/edgepack.conf"),
    "edgepack.tmpfiles": Path("tmpfiles.d/edgepack.conf"),
}
"""Files of this folder, each with its place below `/etc` or `/usr/lib`."""
_HIDDEN = (Path("/home"), Path("/root"), Path("/run/user"))
"""Folders that the unit's sandbox hides (`ProtectHome`)."""


def install_service(program: Path) -> Iterator[str]:
    """Install the service, or bring its files up to date; yield a sentence for each change.

    Running again changes nothing that is right. The service is neither enabled nor started.

    Args:
        program: The command `edgepack-agent` that the service runs.

    Raises:
        DeviceError: Systemd does not manage this device, this user may not, or the sandbox of the
            unit would hide the program.
    """
    _check_root("service install")
    check_systemd()
    if not is_packaged():
        _check_program(program)
        for name, place in FILES.items():
            content = (_SOURCES / name).read_text().replace(PACKAGED_PROGRAM, str(program))
            yield from _write(_ETC / place, content)
    folder = _USR if is_packaged() else _ETC
    run_system_command("systemd-sysusers", str(folder / FILES["edgepack.sysusers"]))
    run_system_command("systemd-tmpfiles", "--create", str(folder / FILES["edgepack.tmpfiles"]))
    run_system_command("systemctl", "daemon-reload")


def remove_service() -> Iterator[str]:
    """Stop the service and remove its files; yield a sentence for each change.

    Settings, keys, state and users stay.

    Raises:
        DeviceError: Systemd does not manage this device, this user may not, or a package of the
            system owns the files.
    """
    _check_root("service remove")
    check_systemd()
    if is_packaged():
        raise DeviceError(
            "the service belongs to a package of the system",
            found_in=str(_USR / FILES[UNIT]),
            remedy="apt remove edgepack-agent",
        )
    if (_ETC / FILES[UNIT]).exists():
        run_system_command("systemctl", "disable", "--now", UNIT)
        yield f"stopped {UNIT}"
        shutil.rmtree(_RUNTIME, ignore_errors=True)
    for place in (*FILES.values(), drop_in().relative_to(_ETC)):
        try:
            (_ETC / place).unlink()
        except FileNotFoundError:
            continue
        yield f"removed {_ETC / place}"
    if (folder := drop_in().parent).is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    run_system_command("systemctl", "daemon-reload")


def is_packaged() -> bool:
    """Return True if a package of the system brought the unit."""
    return (_USR / FILES[UNIT]).exists()


def drop_in() -> Path:
    """Return the place of the part of the unit that `setup` writes."""
    return _ETC / "systemd/system" / f"{UNIT}.d" / "edgepack-setup.conf"


def allow_state_dir(state_dir: Path) -> Iterator[str]:
    """Let the service write to another state folder than the unit's; yield what changed.

    Args:
        state_dir: Absolute path; the unit's own folder needs no change.

    Raises:
        DeviceError: The sandbox of the unit would hide the folder.
    """
    if any(state_dir.is_relative_to(hidden) for hidden in _HIDDEN):
        raise DeviceError(
            "the sandbox of the service hides this state folder",
            found_in=str(state_dir),
            remedy="edgepack fleet enroll … --state-dir /var/lib/edgepack",
        )
    content = f'[Service]\nReadWritePaths="{_escape(str(state_dir))}"\n'
    changed = tuple(_write(drop_in(), content))
    if changed:
        run_system_command("systemctl", "daemon-reload")
    yield from changed


def _escape(text: str) -> str:
    """Return a path for a quoted value of a unit."""
    if not text.isprintable():
        raise DeviceError(
            f"the state folder {text!a} is not a usable path", remedy="choose another"
        )
    return text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')


def _write(path: Path, content: str) -> Iterator[str]:
    try:
        if path.exists() and path.read_text() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.encode())
    except OSError as error:
        raise DeviceError(f"cannot write: {error.strerror}", found_in=str(path)) from error
    yield f"wrote {path}"


def _check_root(command: str) -> None:
    if os.geteuid() != 0:
        raise DeviceError(
            "only root may change the services of this device",
            remedy=f"sudo edgepack-agent {command}",
        )


def _check_program(program: Path) -> None:
    # The command, its interpreter and this package may each be a link to another place.
    for place in (program, *(Path(one).resolve() for one in (program, sys.executable, __file__))):
        if hidden := next((one for one in _HIDDEN if place.is_relative_to(one)), None):
            raise DeviceError(
                f"the sandbox of the service hides {hidden}, so the service cannot start the agent",
                found_in=str(place),
                remedy="install edgepack elsewhere: /usr/bin/python3 -m venv /opt/edgepack",
            )
    if not os.access(program, os.X_OK):
        raise DeviceError(
            "the command edgepack-agent was not found where this program runs",
            found_in=str(program),
            remedy="run the command edgepack-agent by its full path",
        )
