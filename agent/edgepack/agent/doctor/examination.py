"""The examination of a device: a table of checks."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from edgepack.agent.config import read_config
from edgepack.agent.doctor.agent_slots import check_slots
from edgepack.agent.doctor.findings import Device, Finding, UnitState, ok, warn, wrong
from edgepack.agent.doctor.folder import check_agent, check_folder, check_models, check_users
from edgepack.agent.doctor.identity import check_broker, check_certificate, check_trust
from edgepack.agent.doctor.machine import check_clock, check_disk, check_memory
from edgepack.agent.doctor.programs import check_firmware, check_hooks
from edgepack.agent.doctor.providers import check_providers, check_wheels
from edgepack.agent.doctor.rights import check_rights
from edgepack.agent.doctor.unit import check_unit
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.agent.update.status import Status, read_status
from edgepack.errors import EdgepackError

CHECKS: dict[str, Callable[[Device], Iterator[Finding]]] = {
    "clock": check_clock,
    "disk": check_disk,
    "memory": check_memory,
    "folder": check_folder,
    "users": check_users,
    "agent": check_agent,
    "slots": check_slots,
    "unit": check_unit,
    "rights": check_rights,
    "trust": check_trust,
    "certificate": check_certificate,
    "broker": check_broker,
    "runtime": check_wheels,
    "providers": check_providers,
    "hooks": check_hooks,
    "firmware": check_firmware,
    "models": check_models,
}


def examine(
    config_path: Path, state_dir: Path | None, unit: UnitState | None = None
) -> Iterator[Finding]:
    """Run all checks; nothing on the device changes. Each check may fail without the others.

    Args:
        config_path: The agent's settings.
        state_dir: State folder; None takes the folder of the settings, else the default.
        unit: State of the agent's unit; None if unknown.
    """
    config = None
    try:
        config = read_config(config_path)
    except PermissionError:
        yield warn("settings", f"this user may not read {config_path}", "run doctor as root")
    except EdgepackError as error:
        cause = error.__cause__
        verdict = warn if isinstance(cause, PermissionError) else wrong
        place = error.found_in or config_path
        yield verdict("settings", f"{place}: {error.problem}", error.remedy or "correct the file")
    else:
        yield ok("settings", f"{config_path}, of device {config.device}")
    place = state_dir or Path(config.state_dir if config else DEFAULT_STATE_DIR)
    status, problem = _read_status(place)
    if problem:
        yield problem
    device = Device(config=config, state_dir=str(place), status=status, unit=unit, now=time.time())
    for subject, check in CHECKS.items():
        try:
            yield from check(device)
        except (OSError, ValueError, EdgepackError, msgspec.MsgspecError) as error:
            fact = error.problem if isinstance(error, EdgepackError) else str(error)
            yield warn(subject, f"it cannot be examined: {fact}", "run doctor as root")


def _read_status(state_dir: Path) -> tuple[Status | None, Finding | None]:
    """Return the status by the state folder, or the problem of the folder."""
    if not state_dir.is_dir():
        return None, None  # `check_folder` reports this.
    try:
        return read_status(state_dir), None
    except PermissionError:
        return None, None
    except (OSError, ValueError, EdgepackError, msgspec.MsgspecError) as error:
        fact = f"models cannot be read: {error.args[0] if error.args else error}"
        return None, wrong("folder", fact, "start the agent, which repairs its files")
