"""Decisions of a reload: which changed settings apply at once, and which need a restart."""

from collections.abc import Iterator

import msgspec

from edgepack.agent.config import AgentConfig

AT_ONCE = (
    "capture",
    "firmware.compatible",
    "firmware.reboot_s",
    "hooks.folder",
    "hooks.timeout_s",
    "limits",
    "logs",
    "probe",
    "providers",
    "shadow",
    "telemetry.heartbeat_s",
    "telemetry.interval_s",
    "telemetry.update_interval_s",
    "transfer",
    "trust.allow_degraded_unsafe",
    "trust.keys",
    "verification",
    "watch.calm_s",
    "watch.hung_s",
    "watch.lasting_s",
    "watch.look_s",
    "watch.max_acts",
    "watch.slowdown",
)
"""Sections and keys that a running agent takes over. All others are bound to what the agent opened
at its start: connection, identity, folders, sockets, counts."""


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison of two settings.

    Attributes:
        config: The settings in effect after the reload.
        applied: Changed keys that apply at once.
        waiting: Changed keys that need a restart.
    """

    config: AgentConfig
    applied: tuple[str, ...]
    waiting: tuple[str, ...]


def merge_settings(current: AgentConfig, wanted: AgentConfig) -> Reload:
    """Return the settings in effect after a reload.

    Args:
        current: Settings in effect.
        wanted: Settings of the file.
    """
    sections, applied, waiting = {}, [], []
    for name in current.__struct_fields__:
        now, new = getattr(current, name), getattr(wanted, name)
        taken = {}
        for key in _changed_keys(now, new):
            dotted = f"{name}.{key}" if key else name
            if name in AT_ONCE or dotted in AT_ONCE:
                applied.append(dotted)
                taken[key] = getattr(new, key) if key else new
            else:
                waiting.append(dotted)
        if taken:
            sections[name] = taken[""] if "" in taken else msgspec.structs.replace(now, **taken)
    return Reload(
        config=msgspec.structs.replace(current, **sections),
        applied=tuple(applied),
        waiting=tuple(waiting),
    )


def _changed_keys(now: object, new: object) -> Iterator[str]:
    """Yield the keys of a section that differ; "" if the value is not a section of both."""
    if now == new:
        return
    if isinstance(now, msgspec.Struct) and isinstance(new, msgspec.Struct):
        fields = now.__struct_fields__
        yield from (key for key in fields if getattr(now, key) != getattr(new, key))
    else:
        yield ""
