"""A board on loopback: Debian's sshd with keys and settings of its own, in a folder of the test."""

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.simulators.ports import free_port
from tests.simulators.waiting import PATIENCE_S

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class SshBoard:
    """An sshd, and a client's settings that know its host key and log in with a key.

    Args:
        folder: Folder for keys, settings and logs.

    Attributes:
        port: Its port.
        programs: Folder with an `ssh` that reads the client's settings of this board; for PATH.
        temporary: The board's folder for temporary files.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        self.programs = folder / "bin"
        self.temporary = folder / "tmp"
        self._folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.programs.mkdir()
        self.temporary.mkdir()
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            _keygen("-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv TMPDIR={self.temporary}\n"
        )
        (folder / "ssh_config").write_text(
            f"IdentityFile {folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
        )
        ssh = self.programs / "ssh"
        ssh.write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(folder))}/ssh_config "$@"\n'
        )
        ssh.chmod(0o755)
        self.know()
        self.start()

    def url(self, python: str | Path = "") -> str:
        """Return the board's address, with an interpreter there."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{python}"

    def know(self, *hosts: str) -> None:
        """Write the host key into the client's known hosts, for more names of loopback too."""
        kind, value, *_ = (self._folder / "host.pub").read_text().split()
        names = ",".join(f"[{host}]:{self.port}" for host in ("127.0.0.1", *hosts))
        (self._folder / "known_hosts").write_text(f"{names} {kind} {value}\n")

    def know_another_key(self) -> None:
        """Write another key than the host's into the client's known hosts."""
        kind, value, *_ = (self._folder / "user.pub").read_text().split()
        (self._folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {value}\n")

    def forget(self) -> None:
        """Empty the client's known hosts."""
        (self._folder / "known_hosts").write_text("")

    def lock_out(self) -> None:
        """Take the client's key from the keys that may log in."""
        (self._folder / "user.pub").write_text("")

    def start(self) -> None:
        """Start sshd, and wait until it listens."""
        with (self._folder / "sshd.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self._folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise TimeoutError((self._folder / "sshd.log").read_text())

    def kill(self) -> None:
        """Kill sshd with its connections, as a power cut of the network would end them."""
        if self._daemon is not None:
            for pid in (self._daemon.pid, *_descendants(self._daemon.pid, "sshd")):
                with contextlib.suppress(ProcessLookupError):  # It ended meanwhile.
                    os.kill(pid, signal.SIGKILL)
            self._daemon.wait()
        self._daemon = None

    def freeze(self) -> None:
        """Stop sshd with its connections: the board is there, and does not answer."""
        if self._daemon is not None:
            for pid in (self._daemon.pid, *_descendants(self._daemon.pid, "sshd")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def left(self) -> list[str]:
        """Return what a build left in the folder for temporary files."""
        return sorted(path.name for path in self.temporary.iterdir())

    def processes(self) -> list[int]:
        """Return the processes that have this board's folder for temporary files."""
        wanted = f"TMPDIR={self.temporary}".encode()
        return [pid for pid in _pids() if wanted in _environment(pid)]


def _keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", *arguments], check=True, capture_output=True)


def _pids() -> Iterator[int]:
    yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _descendants(root: int, name: str) -> list[int]:
    """Return the descendants of a process that have a name."""
    parents: dict[int, tuple[int, str]] = {}
    for pid in _pids():
        try:
            head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            continue
        parents[pid] = (int(rest.split()[1]), head.partition("(")[2])
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        for pid, (above, called) in parents.items():
            if above == parent:
                todo.append(pid)
                if called == name:
                    found.append(pid)
    return found
