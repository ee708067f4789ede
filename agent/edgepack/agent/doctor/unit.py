"""Check of the agent's unit: whether systemd starts it at boot, and how often it was restarted."""

from collections.abc import Iterator

from edgepack.agent.doctor.findings import Device, Finding, UnitState, ok, warn
from edgepack.agent.service.installation import UNIT
from edgepack.agent.service.system_commands import check_systemd, run_system_command
from edgepack.errors import DeviceError
from edgepack.text import counted

_KEYS = "LoadState,ActiveState,UnitFileState,NRestarts,Result"


def read_unit() -> UnitState | None:
    """Return the state of the agent's unit; None without systemd, unit, or rights to ask."""
    try:
        check_systemd()
        text = run_system_command("systemctl", "show", "--property", _KEYS, UNIT)
    except DeviceError:
        return None
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if found.get("LoadState") != "loaded":
        return None
    restarts = found.get("NRestarts", "")
    return UnitState(
        active=found.get("ActiveState", ""),
        enabled=found.get("UnitFileState", ""),
        restarts=int(restarts) if restarts.isascii() and restarts.isdecimal() else 0,
        result=found.get("Result", ""),
    )


def check_unit(device: Device) -> Iterator[Finding]:
    """Report restarts of the agent by systemd, and a unit that is not enabled."""
    unit = device.unit
    if unit is None:
        return
    if unit.enabled not in ("enabled", "enabled-runtime", "static", "generated"):
        fact = f"{UNIT} is {unit.enabled or 'not enabled'}: it does not start at boot"
        yield warn("unit", fact, f"systemctl enable {UNIT}")
    if unit.restarts or unit.active == "failed":
        fact = f"{UNIT} is {unit.active}, was restarted {counted(unit.restarts, 'time')}"
        result = "" if unit.result == "success" else f", last result: {unit.result}"
        yield warn("unit", fact + result, f"journalctl --unit {UNIT} has the reason")
    elif unit.active == "active":
        yield ok("unit", f"{UNIT} is active, without a restart by systemd")
