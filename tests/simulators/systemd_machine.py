"""A machine with a real systemd as process 1, in namespaces: boots, runs commands, powers off.

Programs come from the host's `/usr`, read through a bind mount; `/etc` and `/var` are the machine's
own. Unlike a real machine there are no devices, cgroups do not limit memory and devices, and
the network has the loopback interface alone.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tests.simulators.waiting import PATIENCE_S, wait_until

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = Path(__file__).with_name("systemd_namespace.py")
PROGRAM = "/opt/edgepack/bin/edgepack-agent"
SERVICE = "edgepack-agent"
_PYTHON = Path("/usr/bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
_TARGET = "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"
_HOST_FILES = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "services")
_USERS = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUPS = "root:x:0:\nnogroup:x:65534:\ntty:x:5:\n"
_MASKED = (
    *("systemd-udevd", "systemd-udev-trigger", "systemd-journald", "systemd-timesyncd"),
    *("systemd-networkd", "systemd-resolved", "systemd-random-seed", "systemd-update-utmp"),
    *("kmod-static-nodes", "modprobe@", "systemd-modules-load", "systemd-sysctl", "dbus", "rauc"),
    *("systemd-remount-fs", "systemd-machine-id-commit", "systemd-hwdb-update"),
)


def why_not() -> str:
    """Return why this machine cannot boot systemd in namespaces; "" if it can."""
    if not Path("/lib/systemd/systemd").exists() or not shutil.which("nsenter"):
        return "systemd is not installed (apt-get install systemd)"
    if not _PYTHON.exists():
        return f"the system has no {_PYTHON}"
    if os.geteuid() != 0:
        return "only root can boot systemd in namespaces"
    if cgroup_root() is None:
        return "no writable cgroup2 hierarchy"
    return ""


def cgroup_root() -> Path | None:
    """Return the hierarchy of cgroup2 that this process may extend."""
    for place in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (place / "cgroup.procs").exists() and os.access(place / "cgroup.procs", os.W_OK):
            return place
    return None


class SystemdMachine:
    """A machine whose files are in a folder.

    Args:
        folder: Is made.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.console = folder / "console.log"
        self._launcher: subprocess.Popen[bytes] | None = None
        self._first = 0
        binds, target = self._lay_out()
        lines = (f"{source}\t{place}\n" for source, place in binds.items())
        (folder / "binds").write_text("".join(lines))
        (folder / "target").write_text(f"{target}\n")

    def _lay_out(self) -> tuple[dict[str, str], str]:
        """Write the files; return mounts of folders of the host, and the unit to start."""
        for name in ("proc", "run", "dev", "sys", "tmp", "root", "var/tmp", "var/lib", "opt/repo"):
            (self.root / name).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)
        (self.root / "root").chmod(0o700)
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if Path("/", name).is_symlink():
                (self.root / name).symlink_to(Path("/", name).readlink())
        self._write_etc()
        self._write_program()
        return {"/usr": "/usr", str(REPOSITORY): "/opt/repo"}, "machine.target"

    def _write_etc(self) -> None:
        etc = self.root / "etc"
        units = etc / "systemd/system"
        units.mkdir(parents=True)
        for name in _HOST_FILES:
            source = Path("/etc", name)
            if source.is_dir():
                shutil.copytree(source, etc / name)
            elif source.exists():
                shutil.copy(source, etc / name)
        (etc / "passwd").write_text(_USERS)
        (etc / "group").write_text(_GROUPS)
        (etc / "shadow").write_text("root:*:1::::::\n")
        (etc / "gshadow").write_text("root:*::\n")
        (etc / "machine-id").write_text("0" * 31 + "1\n")
        (etc / "os-release").write_text(Path("/etc/os-release").read_text())
        (units / "machine.target").write_text(_TARGET)
        (units / "multi-user.target").write_text(_TARGET)
        (units / "machine.target.wants").mkdir()
        (units / "machine.target.wants/multi-user.target").symlink_to("../multi-user.target")
        for name in _MASKED:
            (units / f"{name}.service").symlink_to("/dev/null")

    def _write_program(self) -> None:
        """Write an environment of the agent: this repository with this interpreter."""
        environment = self.root / "opt/edgepack"
        version = _PYTHON.name
        packages = environment / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (environment / "bin").mkdir()
        (environment / "bin/python").symlink_to(_PYTHON)
        (environment / "pyvenv.cfg").write_text(f"home = {_PYTHON.parent}\n")
        installed = Path(sysconfig.get_path("purelib")).relative_to(REPOSITORY)
        folders = ("agent", "fleet", "packager", "profiles", "firmware_hooks", str(installed))
        (packages / "repo.pth").write_text("".join(f"/opt/repo/{one}\n" for one in folders))
        for name, module in (
            ("edgepack-agent", "edgepack.agent.cli"),
            ("edgepack", "edgepack.cli"),
        ):
            program = environment / "bin" / name
            text = f"#!/opt/edgepack/bin/python\nfrom {module} import main\n\nmain()\n"
            program.write_text(text)
            program.chmod(0o755)

    def boot(self) -> None:
        """Start systemd, and wait until the machine is up."""
        root = cgroup_root()
        assert root is not None
        self._cgroup = root / f"edgepack-test-{os.getpid()}"
        self._cgroup.mkdir()
        with self.console.open("ab") as log:
            self._launcher = subprocess.Popen(
                [sys.executable, "-P", str(LAUNCHER), str(self.root), str(self._cgroup)],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._launcher.stdout is not None
        line = self._launcher.stdout.readline()
        assert line, self.console.read_text()
        self._first = int(line)
        wait_until(self._is_up, lambda: self.console.read_text(errors="replace")[-4000:])

    def _is_up(self) -> bool:
        state = self.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
        return state in ("running", "degraded")

    def run(
        self, *command: str, check: bool = True, user: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine.

        Args:
            command: Program and arguments.
            check: Require success.
            user: Who runs the command; "" for root.
        """
        words = ["nsenter", f"--target={self._first}", *_NAMESPACES, "--root", "--wd", "--"]
        if user:
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        ended = subprocess.run(
            [*words, *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={"PATH": "/opt/edgepack/bin:/usr/bin:/usr/sbin", "LANG": "C.UTF-8"},
            check=False,
        )
        if check:
            assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
        return ended

    def show(self, unit: str, key: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", key, unit).stdout.strip()

    def run_sandboxed(self, *commands: str) -> str:
        """Run commands of the agent with every line of the service's sandbox, one after the other.

        The service must be installed. The last command may fail.

        Returns:
            The stdout of the last command.
        """
        unit = self.run("systemctl", "cat", f"{SERVICE}.service").stdout
        unit = unit.replace("Type=notify", "Type=oneshot").replace("Restart=always", "")
        starts = [f"ExecStart={PROGRAM} {one}" for one in commands]
        starts[-1] = starts[-1].replace("=", "=-", 1)
        unit = unit.replace(f"ExecStart={PROGRAM} run", "\n".join(starts))
        unit = unit.replace("ConditionPathExists=", "# ")
        unit += "[Service]\nStandardOutput=truncate:/var/lib/edgepack/said\n"
        (self.root / "etc/systemd/system/sandboxed.service").write_text(unit)
        self.run("systemctl", "daemon-reload")
        ended = self.run("systemctl", "start", "sandboxed", check=False)
        assert ended.returncode == 0, self.console.read_text(errors="replace")[-3000:]
        return (self.root / "var/lib/edgepack/said").read_text()

    def power_off(self) -> None:
        """Shut the machine down in order."""
        self.run("systemctl", "poweroff", check=False)
        self._end()

    def cut_power(self) -> None:
        """End every process of the machine at once."""
        assert self._launcher is not None
        self._launcher.kill()
        self._end()

    def _end(self) -> None:
        assert self._launcher is not None
        self._launcher.wait(PATIENCE_S)
        assert self._launcher.stdout is not None
        self._launcher.stdout.close()
        self._launcher = None
        wait_until(self._remove_cgroups, "the end of all processes")

    def _remove_cgroups(self) -> bool:
        for place in sorted(self._cgroup.rglob("*"), reverse=True):
            if place.is_dir():
                with contextlib.suppress(OSError):
                    place.rmdir()
        with contextlib.suppress(OSError):
            self._cgroup.rmdir()
        return not self._cgroup.exists()

    @property
    def is_up(self) -> bool:
        """True between `boot` and `power_off`."""
        return self._launcher is not None


_NAMESPACES = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--user")


@contextlib.contextmanager
def booted(machine: SystemdMachine) -> Iterator[SystemdMachine]:
    """Yield a running machine."""
    machine.boot()
    try:
        yield machine
    finally:
        if machine.is_up:
            machine.cut_power()
