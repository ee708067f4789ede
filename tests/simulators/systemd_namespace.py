"""Boots systemd as process 1 of new namespaces, in a prepared folder; nothing of the host changes.

    python -P systemd_namespace.py ROOT CGROUP

ROOT has links and the folders `proc`, `run`, `dev`, `sys`. Next to ROOT, the file `binds` has the
folders to mount, and `target` the unit to start. CGROUP is a new folder of a cgroup2 hierarchy. The
first line of stdout is the process id of systemd. Needs root.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x10000000
_NEW_REST = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000
"""Mount, cgroup, host name, IPC, process and network namespaces."""
_READ_ONLY, _BIND, _REMOUNT, ALL, PRIVATE = 1, 0x1000, 0x20, 0x4000, 0x40000
_END_WITH_PARENT = 1
WHOLE_MAP = "0 0 4294967295"


def check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {what}")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() or None, flags, data.encode())
    check(LIBC.mount(*words), target)


def bind(source: str, target: str) -> None:
    mount(source, target, "", _BIND | ALL)


def _enter(root: str, target: str) -> None:
    """Mount what systemd needs, and become process 1."""
    mount("none", "/", "", ALL | PRIVATE)
    bind(root, root)
    for line in Path(root).with_name("binds").read_text().splitlines():
        source, place = line.split("\t")
        Path(root + place).mkdir(parents=True, exist_ok=True)
        bind(source, root + place)
    mount("proc", f"{root}/proc", "proc")
    mount("tmpfs", f"{root}/run", "tmpfs", data="mode=755")
    mount("tmpfs", f"{root}/dev", "tmpfs", data="mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        Path(f"{root}/dev/{name}").touch()
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    Path(f"{root}/dev/shm").mkdir()
    mount("tmpfs", f"{root}/dev/shm", "tmpfs")
    mount("sysfs", f"{root}/sys", "sysfs")
    mount("cgroup2", f"{root}/sys/fs/cgroup", "cgroup2")
    os.chroot(root)
    os.chdir("/")
    words = ["systemd", "--system", "--log-target=console", "--show-status=0", f"--unit={target}"]
    os.execve("/lib/systemd/systemd", words, {"container": "lxc", "PATH": "/usr/bin:/usr/sbin"})


def main() -> None:
    """Boot, and wait for the end of systemd."""
    root, cgroup = sys.argv[1:]
    target = Path(root).with_name("target").read_text().strip()
    LIBC.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    unshared, has_unshared = os.pipe()
    mapped, has_mapped = os.pipe()
    child = os.fork()
    if not child:
        LIBC.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
        check(LIBC.unshare(NEW_USER), "user namespace")
        os.write(has_unshared, b"x")
        os.close(unshared)
        os.read(mapped, 1)
        os.setgid(0)
        os.setuid(0)
        check(LIBC.unshare(_NEW_REST), "namespaces")
        first = os.fork()
        if not first:
            LIBC.prctl(_END_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            _enter(root, target)
        print(first, flush=True)
        os._exit(os.waitpid(first, 0)[1] and 1)
    os.read(unshared, 1)
    Path(f"/proc/{child}/uid_map").write_text(WHOLE_MAP)
    Path(f"/proc/{child}/gid_map").write_text(WHOLE_MAP)
    os.write(has_mapped, b"x")
    sys.exit(os.waitpid(child, 0)[1] and 1)


if __name__ == "__main__":
    main()
