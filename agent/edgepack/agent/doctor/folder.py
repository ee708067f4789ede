"""Checks of the state folder: rights, damage, the agent that holds it, models, users."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.state.lock import LOCK_FILE
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.state.state_file import DAMAGED, read_regular
from edgepack.agent.telemetry.failing import failing_lines
from edgepack.agent.update.status import ModelStatus
from edgepack.bundle.slot import verify_variant
from edgepack.errors import BundleError
from edgepack.text import counted, printable

MAX_FILES = 20_000
"""Files of the state folder whose owner is checked, at most."""
_RUN_AS_ROOT = "run doctor as root"
_START = "systemctl start edgepack-agent, or edgepack-agent run"


def check_folder(device: Device) -> Iterator[Finding]:
    """Check owner and rights of the state folder, and look for damaged files."""
    folder = Path(device.state_dir)
    try:
        found = folder.stat()
        if not stat.S_ISDIR(found.st_mode):
            yield wrong("folder", f"{folder} is not a folder", f"move {folder} away")
            return
        owner, mode = _user(found.st_uid), stat.S_IMODE(found.st_mode)
        if mode & stat.S_IWOTH:
            fact = f"every user can write {folder}, and replace the serving release"
            yield wrong("folder", fact, f"chmod o-w {folder}")
        entries = sorted(one.name for one in islice(folder.iterdir(), MAX_FILES))
    except FileNotFoundError:
        yield warn("folder", f"there is no {folder}: no agent has run with it yet", _START)
        return
    except PermissionError:
        yield warn("folder", f"this user may not read {folder}", _RUN_AS_ROOT)
        return
    damaged = [name for name in entries if DAMAGED in name]
    if damaged:
        yield warn(
            "folder",
            f"{counted(len(damaged), 'damaged file')} put aside in {folder}: "
            f"{printable(', '.join(damaged[:3]))}",
            "remove the files after a look: the agent has replaced them",
        )
    foreign = _foreign(folder, found.st_uid)
    if foreign:
        yield wrong(
            "folder",
            f"{counted(len(foreign), 'file')} below {folder} of other users than {owner}, such as "
            f"{printable(str(foreign[0]))}: the agent could not write there",
            f"chown -R {owner} {folder}",
        )
    if not damaged and not foreign:
        yield ok("folder", f"{folder} belongs to user {owner}, mode {mode:o}")


def _foreign(folder: Path, owner: int) -> list[Path]:
    """Return files of other users, except in the folders that applications write to."""
    shared = {"latency", "latency-disk", "holders", "captured"}
    found: list[Path] = []
    seen = 0
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if here == folder:
            folders[:] = [name for name in folders if name not in shared]
        for name in (*folders, *names):
            seen += 1
            path = here / name
            try:
                if path.lstat().st_uid != owner and path != folder / "latency":
                    found.append(path)
            except OSError:
                continue
        if seen > MAX_FILES:
            break
    return found


def check_agent(device: Device) -> Iterator[Finding]:
    """Check that an agent runs, and the model server if the settings ask for one."""
    status = device.status
    if status is None:
        return
    if status.is_running is None:
        yield warn("agent", "running or not: only its own user may look", _RUN_AS_ROOT)
    elif status.is_running:
        yield ok("agent", f"running{_memory(Path(device.state_dir))}")
    else:
        yield warn("agent", "no agent is running; models serve, and get no update", _START)
    if device.config is None or not device.config.server.enabled or not status.is_running:
        return
    server = status.server
    if server is None or not server.is_running:
        because = f": {printable(server.because)}" if server and server.because else ""
        yield wrong("server", f"the model server does not run{because}", "see the agent's log")
    else:
        yield ok("server", f"the model server runs, {counted(server.restarts, 'crash', 'crashes')}")


def _memory(state_dir: Path) -> str:
    """Return process and memory of the agent, as the end of a sentence; "" if unknown."""
    try:
        pid = int((read_regular(state_dir / LOCK_FILE, limit_bytes=100) or b"").split()[0])
        status = Path(f"/proc/{pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return f", process {pid} with {int(kib) / 1024:.0f} MiB of memory"
    except (OSError, ValueError, IndexError, StopIteration):
        return ""


def check_models(device: Device) -> Iterator[Finding]:
    """Check that each model serves from a complete slot, and what the watch says."""
    if device.status is None:
        return
    if not device.status.models:
        yield ok("models", "none is installed")
    for name, model in device.status.models.items():
        try:
            yield from _check_model(Path(device.state_dir), name, model)
        except PermissionError:
            yield warn(f"model {name}", "this user may not read its slot", _RUN_AS_ROOT)


def _check_model(state_dir: Path, name: str, model: ModelStatus) -> Iterator[Finding]:
    subject = f"model {name}"
    if model.trouble:
        yield wrong(subject, model.trouble, f"{_START}: the agent repairs the pointer")
        return
    if model.active is None:
        yield warn(subject, f"nothing serves: {model.because or model.state}", "install a release")
        return
    choice = model.active.choice
    title = f"{model.active.bundle.version} serves by {choice.chosen} on {choice.provider}"
    if fault := _find_damage(state_dir, model.active) or model.fault:
        remedy = "edgepack-agent install BUNDLE repairs the slot; a running agent asks its fleet"
        yield wrong(subject, f"{title}: {fault}", remedy)
    elif model.failing:
        seen, remedy = failing_lines(model.failing)
        yield wrong(subject, f"{title}: {seen}", remedy)
    elif model.watch.state != "WATCHING":
        watch = model.watch
        fact = f"{title}: {watch.state}, {watch.symptom}: {watch.because}"
        yield warn(subject, fact, f"edgepack-agent explain {name}")
    elif choice.is_fallback:
        yield warn(
            subject, f"{title}, {choice.wanted} was wanted", f"edgepack-agent explain {name}"
        )
    else:
        yield ok(subject, title)


def _find_damage(state_dir: Path, active: ActivePointer) -> str:
    """Read the files of the serving variant; return their fault, "" for complete files.

    Raises:
        PermissionError: This user may not read the files.
    """
    try:
        verify_variant(slot_folder(state_dir, active.digest), active.digest, active.choice.chosen)
    except BundleError as error:
        return error.problem
    return ""


def check_users(device: Device) -> Iterator[Finding]:
    """Name the group whose members may read the state folder and report latencies."""
    try:
        found = Path(device.state_dir).stat()
    except OSError:
        return
    try:
        group = grp.getgrgid(found.st_gid)
    except KeyError:
        yield warn(
            "users",
            f"the state folder has group {found.st_gid}, which does not exist",
            f"chgrp -R models {device.state_dir}",
        )
        return
    primary = {one.pw_name for one in pwd.getpwall() if one.pw_gid == found.st_gid}
    members = sorted({*group.gr_mem, *primary})
    shown = ", ".join(members[:10]) or "none"
    if not found.st_mode & stat.S_IRGRP and not found.st_mode & stat.S_IROTH:
        fact = f"group {group.gr_name} may not read the state folder"
        yield warn("users", fact, f"chmod g+rx {device.state_dir}")
    else:
        yield ok("users", f"members of group {group.gr_name} may report latencies: {shown}")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
