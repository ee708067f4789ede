"""Runs a program for aarch64 in a root of its own, by QEMU; nothing of the host changes.

    python -m tests.simulators.aarch64_namespace ROOT USER GROUP PROGRAM ...

A user namespace has its own table of binary formats (Linux 6.7 or newer). Needs root and Debian's
qemu-user-static. ONNX Runtime crashes under QEMU 7.2 if `/proc/cpuinfo` is that of another
architecture, so the root gets a file that an Arm has, and no `/sys`.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.simulators.systemd_namespace import (
    ALL,
    LIBC,
    NEW_USER,
    PRIVATE,
    WHOLE_MAP,
    bind,
    check,
    mount,
)

_NEW_MOUNTS = 0x20000
_FORMATS = "/proc/sys/fs/binfmt_misc"
_ELF = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_PROCESSOR = """processor : 0
Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer : 0x41
CPU architecture: 8
CPU part : 0xd0c
"""


def has_own_formats() -> bool:
    """Return True if a user namespace has its own table of binary formats."""
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 7)


def _enter(root: Path, user: int, group: int, words: list[str]) -> None:
    mount("none", "/", "", ALL | PRIVATE)
    mount("binfmt_misc", _FORMATS, "binfmt_misc")
    qemu = shutil.which("qemu-aarch64-static")
    Path(_FORMATS, "register").write_text(f":aarch64:M::{_ELF}:{_MASK}:{qemu}:OCF")
    processor = root / "cpuinfo"
    processor.write_text(_PROCESSOR)
    for name in ("proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    bind("/proc", f"{root}/proc")
    bind(str(processor), f"{root}/proc/cpuinfo")
    for name in ("null", "zero", "urandom"):
        (root / "dev" / name).touch()
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    os.chroot(root)
    os.chdir("/")
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.execve(words[0], words, {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})


def main() -> None:
    """Run the program, and end as it ends."""
    root, user, group, *words = sys.argv[1:]
    unshared, has_unshared = os.pipe()
    mapped, has_mapped = os.pipe()
    child = os.fork()
    if not child:
        check(LIBC.unshare(NEW_USER | _NEW_MOUNTS), "namespaces")
        os.write(has_unshared, b"x")
        os.read(mapped, 1)
        os.setgid(0)
        os.setuid(0)
        _enter(Path(root), int(user), int(group), words)
    os.read(unshared, 1)
    for kind in ("uid_map", "gid_map"):
        Path("/proc", str(child), kind).write_text(WHOLE_MAP)
    os.write(has_mapped, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main()
