"""The machine that measured: without it a latency means nothing."""

import os
from pathlib import Path

import msgspec

_CPU_INFO = Path("/proc/cpuinfo")
_TELLING_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
"""CPU flags that decide how fast 8-bit products are."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine.

    Attributes:
        cpu: Model name.
        cores: Logical cores.
        memory_bytes: Main memory.
        flags: Those of the CPU's flags that decide how fast 8-bit products are.
    """

    cpu: str
    cores: int
    memory_bytes: int
    flags: tuple[str, ...]

    @property
    def has_vnni(self) -> bool:
        """Whether one instruction sums four 8-bit products, without saturation."""
        return any("vnni" in flag for flag in self.flags)


def read_host() -> Host:
    """This machine."""
    return parse_host(
        _CPU_INFO.read_text(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def parse_host(cpu_info: str, *, cores: int, memory_bytes: int) -> Host:
    """A machine from the text of `/proc/cpuinfo`."""
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
