"""Descriptions of the commands' results, as lines for a person."""

from collections.abc import Iterator

from edgepack.agent.model_commands.standing import local_time, standing_lines, text_lines, title_of
from edgepack.agent.state.broker_state import BrokerState
from edgepack.agent.state.model_server import ServerState
from edgepack.agent.telemetry.failing import failing_lines
from edgepack.agent.update.status import ModelStatus, Status
from edgepack.bundle.features import FEWEST_INFERENCES
from edgepack.text import counted, printable_lines
from edgepack.wire.drift_words import drift_lines
from edgepack.wire.reports import DeviceFacts, ProviderFacts

_RUNNING = {
    True: "running",
    False: "not running",
    None: "running or not: only its own user may look",
}


_NO_DRIFT = (
    f"it takes {FEWEST_INFERENCES} inferences, and a bundle with the features of given samples"
)


def describe_status(status: Status) -> str:
    """Return the status as lines for a person."""
    lines = [f"agent     {_RUNNING[status.is_running]}"]
    if status.broker is not None:
        lines += _describe_broker(status.broker, is_running=status.is_running is not False)
    if status.server is not None and status.is_running is not False:
        lines += _describe_server(status.server)
    if status.disk:
        lines.append(f"disk      {status.disk}")
    if not status.models:
        lines.append("models    none: no model was installed")
    for name, model in status.models.items():
        lines += ["", *_describe_model(name, model, is_running=status.is_running is not False)]
    return printable_lines(lines)


def _describe_broker(broker: BrokerState, *, is_running: bool) -> Iterator[str]:
    since = local_time(broker.since)
    if not is_running:
        seen = "reached" if broker.is_connected else "not reached"
        yield f"broker    {broker.broker} was {seen} when the agent last ran"
    elif broker.is_connected:
        yield f"broker    {broker.broker} is reached since {since}"
    else:
        yield f"broker    {broker.broker} is not reached since {since}"
    if broker.because:
        yield f"          {broker.because}"


def _describe_server(server: ServerState) -> Iterator[str]:
    state = "running" if server.is_running else "not running"
    yield f"server    {state} since {local_time(server.since)}"
    if server.because:
        times = counted(server.restarts, "time")
        yield f"          ended {times} since the agent started; the last {server.because}"


def _describe_model(name: str, model: ModelStatus, *, is_running: bool) -> Iterator[str]:
    yield f"model     {name}"
    active = model.active
    if model.trouble:
        yield f"active    cannot be read: {model.trouble}"
    elif active is None:
        yield "active    nothing"
    else:
        kept = "" if active.committed else ", not committed yet"
        since = local_time(active.since)
        yield f"active    {title_of(active.bundle)} since {since}{kept}"
        if model.fault:
            yield f"damaged   {model.fault}; a running agent repairs it"
        yield f"variant   {active.choice.chosen} on {active.choice.provider}"
        if model.failing:
            seen, remedy = failing_lines(model.failing)
            yield f"failing   {seen}, since {local_time(model.failing.since)}"
            yield f"          {remedy}"
        yield f"because   {active.choice.because}"
        for probe in active.choice.probes:
            if probe.variant == active.choice.chosen and probe.preparation is not None:
                yield f"prepared  {probe.preparation.because}"
            if probe.variant == active.choice.chosen and probe.texts is not None:
                yield from text_lines(probe.texts)
        if active.choice.is_fallback:
            yield f"fallback  {active.choice.wanted} was wanted"
        why = _NO_DRIFT if is_running else "no agent is running"
        for line in drift_lines(model.drift) if model.drift else (f"not measured: {why}",):
            yield f"drift     {line}"
    yield from standing_lines(model)


def describe_facts(facts: DeviceFacts) -> str:
    """Return the device's facts and providers as lines for a person."""
    cores = f"{facts.cpu_count} core{'s' * (facts.cpu_count != 1)}"
    lines = [
        f"device    {facts.arch}, {facts.cpu_model or 'unknown processor'}, {cores}",
        f"memory    {facts.memory_bytes / 2**30:.1f} GiB",
    ]
    if facts.soc:
        lines.append(f"soc       {facts.soc}")
    lines.append(f"class     {facts.hardware_class}")
    lines.append(f"runtime   {'ONNX Runtime ' + facts.runtime if facts.runtime else 'none'}")
    if facts.firmware:
        lines.append(f"firmware  {facts.firmware}")
    lines += [f"driver    {name} {version}" for name, version in sorted(facts.drivers.items())]
    lines.append("")
    rows = [_describe_provider(provider) for provider in facts.providers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, because in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        lines.append("  ".join(("", *padded, because)))
    return printable_lines(lines)


def _describe_provider(provider: ProviderFacts) -> tuple[str, ...]:
    mark = "no" if not provider.available else "simulated" if provider.is_simulator else "yes"
    because = provider.because
    if provider.brought_by:
        because += f"; it comes with: {provider.brought_by}"
    return (mark, provider.name, ", ".join(provider.devices), because)
