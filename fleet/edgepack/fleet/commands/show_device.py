"""Output of a device with all details, for people."""

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.commands.show import model_rows, styled
from edgepack.fleet.documents.devices import DeviceDetails
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.documents.wording import ago, failures_line, labels_line, numbers_line
from edgepack.wire.drift_words import drift_lines
from edgepack.wire.reports import DeviceFacts

UNSIGNED = "it obeys orders that nobody signed, since it was enrolled before: enrol it again"


def device_panel(device: DeviceDetails, now: float) -> RenderableType:
    """Return the device's name, facts, models and rollouts."""
    head = Table(box=None, show_header=False, pad_edge=False)
    head.add_column(style="bold")
    head.add_column(overflow="fold")
    lines = [
        ("device", device.device),
        ("group", device.group),
        ("labels", labels_line(device.labels)),
        ("seen", "online" if device.online else ago(device.last_seen, now)),
        ("enrolled", ago(device.enrolled_at, now)),
        *([("certificate", _certificate(device, now))] if device.certificate else []),
        *([("trust", UNSIGNED)] if device.obeys_unsigned else []),
        *(_facts(device.facts) if device.facts else [("facts", "not reported yet")]),
        *(("warning", warning) for warning in device.warnings),
        *(
            (model.name, failures_line(model.outcomes))
            for model in device.models
            if (told := model.outcomes) and (told.failed or told.not_finite or told.bad_inputs)
        ),
        *(
            ("drift", f"{model.name}: {line}")
            for model in device.models
            for line in (drift_lines(model.drift) if model.drift else ())
        ),
        *([("dropped", numbers_line(device.dropped))] if device.dropped else []),
    ]
    for name, value in lines:
        head.add_row(name, Text(value))
    parts: list[RenderableType] = [head]
    if device.models:
        parts += [Text(""), model_rows(device.models)]
    if device.rollouts:
        parts += [Text(""), _rollouts(device)]
    return Group(*parts)


def _certificate(device: DeviceDetails, now: float) -> str:
    ends_at = device.certificate_ends_at
    if ends_at is None:
        return device.certificate
    ends = "ended" if ends_at <= now else "ends"
    day = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%d")
    return f"{device.certificate}, {ends} on {day}"


def _facts(facts: DeviceFacts) -> list[tuple[str, str]]:
    providers = [
        f"{it.name.removesuffix('ExecutionProvider')}{' (simulated)' if it.is_simulator else ''}"
        for it in facts.providers
        if it.available
    ]
    return [
        ("hardware", facts.hardware_class),
        ("cpu", f"{facts.cpu_count} x {facts.cpu_model}, {facts.arch}"),
        ("soc", facts.soc or "–"),
        ("memory", f"{facts.memory_bytes / 2**30:.1f} GiB"),
        ("system", f"{facts.os}, Python {facts.python}, agent {facts.agent_version}"),
        ("firmware", facts.firmware or "–"),
        ("runtime", facts.runtime),
        ("providers", ", ".join(providers) or "none"),
    ]


def _rollouts(device: DeviceDetails) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rollout", "bundle", "part", "because"):
        table.add_column(name, overflow="fold")
    for part in device.rollouts:
        table.add_row(
            part.rollout, Text(full_title(part.bundle)), styled(part.state), Text(part.because)
        )
    return table
