"""The measuring machine: without the machine a latency means nothing."""

import os
from pathlib import Path

import msgspec

_CPU_INFO = Path("/proc/cpuinfo")
_CPU_TIMES = Path("/proc/stat")
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""Of the first line of `/proc/stat`; see proc_stat(5)."""
_TELLING_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
"""CPU flags that decide how fast 8-bit products are, the better one of a kind of CPU later."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine.

    Attributes:
        cpu: Model name.
        cores: Logical cores.
        memory_bytes: Main memory.
        flags: CPU flags that decide the speed of 8-bit products.
    """

    cpu: str
    cores: int
    memory_bytes: int
    flags: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The best of its flags, by which pages are named: the order of the tools differs."""
        return self.flags[-1] if self.flags else "plain"

    @property
    def has_vnni(self) -> bool:
        """True if a single instruction sums four 8-bit products, without saturation."""
        return any("vnni" in flag for flag in self.flags)


def read_host() -> Host:
    """Return this machine."""
    return parse_host(
        _CPU_INFO.read_text(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def parse_host(cpu_info: str, *, cores: int, memory_bytes: int) -> Host:
    """Return a machine from the text of `/proc/cpuinfo`."""
    values: dict[str, str] = {}
    for line in cpu_info.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    flags = set(values.get("flags", values.get("Features", "")).split())
    return Host(
        cpu=values.get("model name", "unknown"),
        cores=cores,
        memory_bytes=memory_bytes,
        flags=tuple(flag for flag in _TELLING_FLAGS if flag in flags),
    )


def read_busy_s() -> float:
    """Return the processor time of this machine since its start, on all CPUs, seconds."""
    return parse_busy_s(_CPU_TIMES.read_text(), ticks_a_second=os.sysconf("SC_CLK_TCK"))


def parse_busy_s(cpu_times: str, *, ticks_a_second: int) -> float:
    """Return the same from the text of `/proc/stat`; time used by the hypervisor counts."""
    ticks = dict(zip(_COLUMNS, map(int, cpu_times.split()[1:]), strict=False))
    return sum(ticks.get(column, 0) for column in _BUSY) / ticks_a_second
