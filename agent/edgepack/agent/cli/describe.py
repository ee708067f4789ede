"""What the commands find, as lines for a person."""

import time

from edgepack.agent.update.status import Status
from edgepack.wire.messages import BundleRef, DeviceFacts, ProviderFacts


def describe_status(status: Status) -> str:
    """The status as lines for a person."""
    lines = [f"agent     {'running' if status.is_running else 'not running'}"]
    active = status.active
    if active is None:
        lines.append("active    nothing: no model was installed")
    else:
        kept = "" if active.committed else ", not committed yet"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(active.since))
        lines.append(f"active    {_title(active.bundle)} since {since}{kept}")
        lines.append(f"variant   {active.choice.chosen} on {active.choice.provider}")
        lines.append(f"because   {active.choice.because}")
        if active.choice.is_fallback:
            lines.append(f"fallback  {active.choice.wanted} was wanted")
    if status.previous:
        lines.append(f"previous  {_title(status.previous)}")
    lines.append(f"update    {status.state}{_about(status)}")
    if status.because:
        lines.append(f"          {status.because}")
    if status.pending:
        lines.append(f"next      {_title(status.pending)}")
    return "\n".join(lines)


def describe_facts(facts: DeviceFacts) -> str:
    """What the device is and offers, as lines for a person."""
    cores = f"{facts.cpu_count} core{'s' * (facts.cpu_count != 1)}"
    lines = [
        f"device    {facts.arch}, {facts.cpu_model or 'unknown processor'}, {cores}",
        f"memory    {facts.memory_bytes / 2**30:.1f} GiB",
    ]
    if facts.soc:
        lines.append(f"soc       {facts.soc}")
    lines.append(f"class     {facts.hardware_class}")
    lines.append(f"runtime   {'ONNX Runtime ' + facts.runtime if facts.runtime else 'none'}")
    lines += [f"driver    {name} {version}" for name, version in sorted(facts.drivers.items())]
    lines.append("")
    rows = [_describe_provider(provider) for provider in facts.providers]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *cells, because in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
        lines.append("  ".join(("", *padded, because)))
    return "\n".join(lines)


def _describe_provider(provider: ProviderFacts) -> tuple[str, ...]:
    mark = "no" if not provider.available else "simulated" if provider.is_simulator else "yes"
    because = provider.because
    if provider.brought_by:
        because += f"; it comes with: {provider.brought_by}"
    return (mark, provider.name, ", ".join(provider.devices), because)


def _about(status: Status) -> str:
    if status.target is None:
        return ""
    rollout = f" (rollout {status.rollout})" if status.rollout else ""
    return f": {_title(status.target)}{rollout}"


def _title(bundle: BundleRef) -> str:
    return f"{bundle.name} {bundle.version} (release {bundle.release})"
