"""Simulators that compute on one thread get one CPU, so that waiting costs nothing."""

import os

from edgepack.agent.runtime.providers import is_simulated, known_provider


def keep_to_one_cpu(provider: str) -> None:
    """Keep this process to one CPU where the provider is a simulator that computes on one thread.

    The threads that represent a chip's other units wait by yielding repeatedly (`sched_yield`).
    With CPUs of their own these threads cost as much as the work, and slow it; later threads
    inherit the one CPU. Measured with onnxruntime-qnn 2.7.0 on two CPUs: a third less processor
    time at equal time.

    Args:
        provider: What this process is going to open, and nothing else.
    """
    plugin = known_provider(provider).plugin
    if plugin is None or not plugin.simulator_is_serial or not is_simulated(plugin):
        return
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})
