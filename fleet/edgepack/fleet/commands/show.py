"""Output of the fleet's commands: tables and lines of the API's documents."""

import time
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.commands.show_gates import gates_tables
from edgepack.fleet.documents.devices import DeviceView, GroupView, ModelView
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.latency import TEXT_COLUMNS
from edgepack.fleet.documents.releases import ReleaseView, full_title, tell_apart, title
from edgepack.fleet.documents.rollouts import LatencyView, RolloutView
from edgepack.fleet.documents.wording import (
    ago,
    counts_line,
    energy_line,
    labels_line,
    megabytes,
    numbers_line,
    outcomes_line,
    short_provider,
    stamp,
)
from edgepack.text import counted
from edgepack.wire.orders import BundleRef

_STYLES = {
    "COMMITTED": "green",
    "FINISHED": "green",
    "PREPARING": "cyan",
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
MAX_ROWS = 40
_NONE_ENROLLED = "no device is enrolled yet: edgepack fleet enroll cam-7 --group cameras -o cam-7/"
_MODEL_COLUMNS = ("runs", "provider", "state", "because")
_FOLDED = frozenset({"because", "labels"})


def devices_table(devices: Sequence[DeviceView], info: FleetInfo, now: float) -> RenderableType:
    """Return the fleet's devices."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    labelled = any(device.labels for device in devices)
    own = ("device", "group", *(["labels"] if labelled else []), "seen")
    for name in (*own, *_MODEL_COLUMNS):
        table.add_column(name, overflow="fold" if name in _FOLDED else "ellipsis")
    title_of = tell_apart(
        model.active for device in devices for model in device.models if model.active
    )
    for device in devices:
        seen = "online" if device.online else ago(device.last_seen, now)
        if device.warnings:
            seen += f", {counted(len(device.warnings), 'warning')}"
        cells = [
            Text(device.device),
            Text(device.group),
            *([Text(labels_line(device.labels))] if labelled else []),
            Text(seen, "yellow" if device.warnings else "green" if device.online else "dim"),
        ]
        for model in device.models:
            table.add_row(*cells, *_model_cells(model, title_of))
            cells = [Text("")] * len(cells)  # The next line is of the same device.
        if not device.models:
            table.add_row(*cells, Text("–"))
    link = "connected" if info.is_connected else "NOT CONNECTED"
    nobody = Text("no device is like that" if info.devices else _NONE_ENROLLED)
    return Group(
        table if devices else nobody,
        Text(
            f"{counted(info.devices, 'device')}, {info.online} online; broker {info.broker} {link}"
        ),
    )


def model_rows(models: Sequence[ModelView]) -> Table:
    """Return a table of a device's models."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _MODEL_COLUMNS:
        table.add_column(name, overflow="fold" if name in _FOLDED else "ellipsis")
    for model in models:
        table.add_row(*_model_cells(model, full_title))
    return table


def groups_table(groups: Sequence[GroupView]) -> RenderableType:
    """Return a table of the groups."""
    if not groups:
        return _NONE_ENROLLED
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("group", "devices", "online"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for group in groups:
        table.add_row(Text(group.group), str(group.devices), str(group.online))
    return table


def _model_cells(model: ModelView, title_of: Callable[[BundleRef], str]) -> tuple[Text, ...]:
    runs = title_of(model.active) if model.active else "–"
    provider = short_provider(model.provider)
    notes = {"simulated": model.is_simulator, "fallback": model.is_fallback}
    if any(notes.values()):
        provider += f" ({', '.join(note for note, holds in notes.items() if holds)})"
    because = model.because or (model.choice_because if model.is_fallback else "")
    state = styled(model.state)
    if (watch := model.watch) is not None and watch.state != "WATCHING":
        state.append(f", {watch.state}", "red")
        because = f"{watch.because} (wanted {watch.wanted}, chosen {watch.chosen or 'nothing'})"
    return Text(runs), Text(provider), state, Text(because)


def info_table(info: FleetInfo) -> RenderableType:
    """Return the fleet at a glance."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    sent = ", ".join(f"{megabytes(size)} {way}" for way, size in info.sent_bytes.items())
    taken = numbers_line(dict(sorted(info.counters.items())))
    link = "connected" if info.is_connected else "NOT CONNECTED"
    for name, value in (
        ("fleet", info.tenant),
        *([("controller", _who_leads(info))] if info.controller else []),
        ("broker", f"{info.broker}, {link}"),
        ("devices", f"{info.devices}, {info.online} online"),
        ("sent", sent),
        ("pace", f"{megabytes(info.pace_bytes_per_s)}/s"),
        ("messages", taken or "none yet"),
        *(
            [("inferences", outcomes_line(info.inferences))]
            if any(info.inferences.values())
            else []
        ),
        *([("energy", energy_line(info.energy))] if info.energy.get("inferences") else []),
        *([("dropped", numbers_line(info.dropped))] if info.dropped else []),
        *(("warning", warning) for warning in info.warnings),
    ):
        table.add_row(name, Text(value))
    return table


def _who_leads(info: FleetInfo) -> str:
    leads = info.leader == info.controller
    return f"{info.controller}, {'leads' if leads else f'follows {info.leader}'}"


def releases_table(releases: Sequence[ReleaseView], now: float) -> RenderableType:
    """Return a table of the releases."""
    if not releases:
        return "no release yet: edgepack rollout start BUNDLE publishes one"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "version", "release", "digest", "size", "published"):
        table.add_column(name, justify="right" if name in ("release", "size") else "left")
    for release in releases:
        bundle = release.bundle
        table.add_row(
            Text(bundle.name),
            Text(bundle.version),
            str(bundle.release),
            Text(bundle.digest[:12]),
            megabytes(release.size_bytes),
            ago(release.added_at, now),
        )
    return table


def rollouts_table(rollouts: Sequence[RolloutView]) -> RenderableType:
    """Return a table of all rollouts."""
    if not rollouts:
        return "no rollout yet: edgepack rollout start BUNDLE --group GROUP"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rollout", "bundle", "for", "wave", "state", "devices", "because"):
        table.add_column(name, overflow="fold")
    title_of = tell_apart(rollout.bundle for rollout in rollouts)
    for rollout in rollouts:
        table.add_row(
            rollout.rollout,
            Text(title_of(rollout.bundle)),
            Text(rollout.selector),
            f"{rollout.wave}/{rollout.wave_count}",
            styled(rollout.state),
            counts_line(rollout),
            Text(rollout.because),
        )
    return table


def events_table(events: Sequence[EventView], now: float) -> RenderableType:
    """Return a table of events."""
    if not events:
        return "no events"
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "at", "rollout", "device", "from", "to", "because"):
        table.add_column(name, overflow="fold")
    for event in events:
        table.add_row(
            str(event.id),
            stamp(event.at, now),
            Text(event.rollout),
            Text(event.device or "–"),
            Text(event.from_state),
            styled(event.to_state or event.kind),
            Text(event.because),
        )
    return table


def rollout_panel(rollout: RolloutView) -> RenderableType:
    """Return a panel of a rollout with its devices and latencies."""
    head = Text.assemble(
        (f"{rollout.rollout} ", "bold"),
        f"{rollout.bundle.name} {rollout.bundle.version} for {rollout.selector}: ",
        styled(rollout.state),
        f", wave {rollout.wave} of {rollout.wave_count} ({rollout.settings.waves})\n",
        f"rolls {title(rollout.takes_back)} back; " if rollout.takes_back else "",
        f"{counts_line(rollout)}; {rollout.because}",
        f"\nstopped by {rollout.stopped_by}" if rollout.stopped_by else "",
        "\nheld: too few measured" if rollout.waits_reason == "evidence" else "",
        f"\nwaits for {rollout.waits_for}" if rollout.waits_for else "",
        (f"\ndevices cannot get this release: {rollout.release_problem}", "red")
        if rollout.release_problem
        else "",
    )
    parts: list[RenderableType] = [head, _assignments_table(rollout), *gates_tables(rollout.gates)]
    if rollout.gates_at is not None:
        at = stamp(rollout.gates_at, time.time())
        parts.append(Text(f"gates as measured at the decision, {at}", "dim"))
    measured = [row for row in rollout.latency if not row.is_simulator]
    if measured:
        parts.append(_latency_table(measured))
    parts += [
        Text(f"{name} is held back: {because}", "red") for name, because in rollout.held.items()
    ]
    parts += [
        Text(
            f"wave {one.wave}: {one.wanted} alone measured a breach and runs its previous release "
            f"again; {one.chosen} tried the release instead: {one.because}",
            "yellow",
        )
        for one in rollout.set_aside
    ]
    parts += [
        Text(
            f"{short_provider(row.provider)} is simulated on {counted(row.devices, 'device')}, and "
            f"its times are not comparable: {counted(row.inferences, 'inference')} of "
            f"{row.variant}, {row.failures} failed"
        )
        for row in rollout.latency
        if row.is_simulator
    ]
    return Group(*parts)


def _assignments_table(rollout: RolloutView) -> RenderableType:
    assignments = rollout.assignments
    table = Table(box=None, header_style="bold", pad_edge=False)
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
    left = sum(rollout.counts.values()) - len(shown)
    return Group(table, Text(f"… and {left} more")) if left else table


def _latency_table(latency: Sequence[LatencyView]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("hardware")
    table.add_column("provider")
    table.add_column("variant")
    of_texts = TEXT_COLUMNS if any(row.texts for row in latency) else ()
    for name in ("devices", "inferences", "failures", "p50 ms", "p95 ms", "p99 ms", *of_texts):
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
            *(row.texts.words if row.texts else ()),
        )
    return table


def rollout_line(rollout: RolloutView, now: float) -> str:
    """Return a rollout as a single line, with the time of day."""
    return (
        f"{stamp(now, now)} {rollout.rollout} {rollout.state} "
        f"wave {rollout.wave}/{rollout.wave_count}: {counts_line(rollout)}; {rollout.because}"
        + (f"; waits for {rollout.waits_for}" if rollout.waits_for else "")
    )


def styled(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, _STYLES.get(state, ""))
