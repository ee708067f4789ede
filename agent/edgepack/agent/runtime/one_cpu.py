"""One CPU for a simulator that computes on a single thread."""

import os
from pathlib import Path

from edgepack.agent.runtime.providers import is_simulated, known_provider
from edgepack.bundle.manifest import Variant


def providers_of(variant: Variant) -> tuple[str, ...]:
    """Return the providers of a variant, or of its stages."""
    return tuple(one.provider for one in variant.parts or (variant,))


def keep_to_one_cpu(*providers: str) -> None:
    """Bind this process to a single CPU if its providers are simulators that compute on a single
    thread.

    The threads that represent a chip's other units wait by yielding repeatedly (`sched_yield`).
    With separate CPUs these threads cost as much as the work, and slow the work; later threads
    inherit the CPU. Measured with onnxruntime-qnn 2.7.0 on two CPUs: a third less processor time at
    equal time.

    Args:
        providers: All providers that this process will open.
    """
    if all(map(_is_serial, providers)):
        os.sched_setaffinity(0, {_current_cpu()})


def _current_cpu() -> int:
    """Return the CPU that the scheduler chose, one that is not busy with something urgent."""
    _, _, fields = Path("/proc/self/stat").read_text().rpartition(")")
    return int(fields.split()[36])  # `processor` in the table of proc(5), after the name


def _is_serial(provider: str) -> bool:
    plugin = known_provider(provider).plugin
    if plugin is None or plugin.simulator is None:
        return False
    return plugin.simulator.is_serial and is_simulated(plugin)
