"""What the fleet's commands print: tables and lines, from the API's documents."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.documents.devices import DeviceView
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.rollouts import AssignmentView, LatencyView, RolloutView

_STYLES = {
    "COMMITTED": "green",
    "FINISHED": "green",
    "RUNNING": "cyan",
    "WORKING": "cyan",
    "OFFERED": "cyan",
    "PAUSED": "yellow",
    "SILENT": "red",
    "FAILED": "red",
    "ABORTED": "red",
    "RECALLED": "yellow",
    "WITHDRAWN": "yellow",
}
_ORDER = (
    "COMMITTED",
    "WORKING",
    "OFFERED",
    "WAITING",
    "FAILED",
    "SILENT",
    "WITHDRAWN",
    "RECALLED",
)
MAX_ROWS = 40


def devices_table(devices: Sequence[DeviceView], info: FleetInfo, now: float) -> RenderableType:
    """The fleet's devices."""
    table = Table(box=None, header_style="bold")
    for name in ("device", "group", "seen", "runs", "provider", "state", "because"):
        table.add_column(name, overflow="fold" if name == "because" else "ellipsis")
    for device in devices:
        seen = "online" if device.online else ago(device.last_seen, now)
        runs = f"{device.active.name} {device.active.version}" if device.active else "–"
        provider = short_provider(device.provider)
        if device.is_fallback:
            provider += " (fallback)"
        because = device.because or (device.choice_because if device.is_fallback else "")
        table.add_row(
            Text(device.device),
            Text(device.group),
            Text(seen, "green" if device.online else "dim"),
            Text(runs),
            Text(provider),
            styled(device.state),
            Text(because),
        )
    link = "connected" if info.is_connected else "NOT CONNECTED"
    return Group(
        table, Text(f"{info.devices} devices, {info.online} online; broker {info.broker} {link}")
    )


def rollouts_table(rollouts: Sequence[RolloutView]) -> RenderableType:
    """All rollouts, one line each."""
    table = Table(box=None, header_style="bold")
    for name in ("rollout", "bundle", "for", "wave", "state", "devices", "because"):
        table.add_column(name, overflow="fold")
    for rollout in rollouts:
        table.add_row(
            rollout.rollout,
            Text(f"{rollout.bundle.name} {rollout.bundle.version}"),
            Text(rollout.selector),
            f"{rollout.wave}/{rollout.wave_count}",
            styled(rollout.state),
            counts_line(rollout),
            Text(rollout.because),
        )
    return table


def events_table(events: Sequence[EventView]) -> RenderableType:
    """Events, one line each."""
    table = Table(box=None, header_style="bold")
    for name in ("id", "at", "rollout", "device", "from", "to", "because"):
        table.add_column(name, overflow="fold")
    for event in events:
        table.add_row(
            str(event.id),
            stamp(event.at),
            Text(event.rollout),
            Text(event.device or "–"),
            Text(event.from_state),
            styled(event.to_state or event.kind),
            Text(event.because),
        )
    return table


def rollout_panel(rollout: RolloutView) -> RenderableType:
    """One rollout with its devices and latencies."""
    head = Text.assemble(
        (f"{rollout.rollout} ", "bold"),
        f"{rollout.bundle.name} {rollout.bundle.version} for {rollout.selector}: ",
        styled(rollout.state),
        f", wave {rollout.wave} of {rollout.wave_count} ({rollout.waves})\n",
        f"{counts_line(rollout)}; {rollout.because}",
    )
    parts: list[RenderableType] = [head, _assignments_table(rollout.assignments)]
    if rollout.latency:
        parts.append(_latency_table(rollout.latency))
    return Group(*parts)


def _assignments_table(assignments: Sequence[AssignmentView]) -> RenderableType:
    table = Table(box=None, header_style="bold")
    for name in ("device", "wave", "part", "device says", "because"):
        table.add_column(name, overflow="fold" if name == "because" else "ellipsis")
    # Those that need a look come first when there are too many for a screen.
    notable = sorted(assignments, key=lambda a: a.state in ("COMMITTED", "WAITING"))
    shown = assignments if len(assignments) <= MAX_ROWS else notable[:MAX_ROWS]
    for part in shown:
        says = part.device_state
        if says == "DOWNLOADING":
            says += f" {part.progress:.0%}"
        table.add_row(
            Text(part.device), str(part.wave), styled(part.state), Text(says), Text(part.because)
        )
    left = len(assignments) - len(shown)
    return Group(table, Text(f"… and {left} more")) if left else table


def _latency_table(latency: Sequence[LatencyView]) -> RenderableType:
    table = Table(box=None, header_style="bold")
    table.add_column("hardware")
    table.add_column("provider")
    table.add_column("variant")
    for name in ("devices", "inferences", "failures", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for row in latency:
        table.add_row(
            Text(row.hardware_class),
            Text(short_provider(row.provider)),
            Text(row.variant),
            str(row.devices),
            str(row.inferences),
            str(row.failures),
            *(f"{value:.2f}" for value in (row.p50_ms, row.p95_ms, row.p99_ms)),
        )
    return table


def counts_line(rollout: RolloutView) -> str:
    """Devices by state, in words."""
    counts = rollout.counts
    return ", ".join(f"{counts[s]} {s.lower()}" for s in _ORDER if counts.get(s))


def styled(state: str) -> Text:
    """A state in its colour."""
    return Text(state, _STYLES.get(state, ""))


def short_provider(provider: str) -> str:
    """A provider's name without what all of them end in."""
    return provider.removesuffix("ExecutionProvider")


def ago(moment: float | None, now: float) -> str:
    """How long ago something was, for people."""
    if moment is None:
        return "never"
    seconds = max(0, int(now - moment))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def stamp(moment: float) -> str:
    """A time of day."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
