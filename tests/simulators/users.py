"""Other users of this machine, made for a test by root, with a usable Python."""

import contextlib
import fcntl
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.simulators.waiting import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class User:
    """A user, and a Python for the user."""

    uid: int
    gid: int
    python: str
    environment: dict[str, str]

    def popen(
        self, command: list[str], *, groups: tuple[int, ...] = (), **words: object
    ) -> "Popen":
        """Start a command as this user, with a private umask."""
        started: Popen = subprocess.Popen(
            command,
            user=self.uid,
            group=self.gid,
            extra_groups=groups,
            umask=0o077,
            cwd="/",
            env=os.environ | self.environment,
            **words,  # type: ignore[call-overload]
        )
        return started


Popen = subprocess.Popen[bytes]


@contextlib.contextmanager
def made_user(name: str) -> Iterator[User]:
    """Make a user of the system with a group of its own, while the block runs.

    Tests run side by side, so the name must hold the id of this process.
    """
    _change_users("useradd", "--system", "--user-group", "--no-create-home", name)
    uid, gid = (int(_output("id", flag, name)) for flag in ("-u", "-g"))
    try:
        python, environment = _python_for(uid)
        yield User(uid=uid, gid=gid, python=python, environment=environment)
    finally:
        wait_until(lambda: not _processes_of(uid), f"the processes of {name} end", 0.05)
        _change_users("userdel", name)


def _processes_of(uid: int) -> list[str]:
    """Return the processes of a user; userdel refuses while there are any."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == uid:
                found.append(folder.name)
    return found


def _change_users(*command: str) -> None:
    """Run a command that fails, instead of waiting, during another change of users."""
    with Path(tempfile.gettempdir(), "edgepack-t-users.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _python_for(uid: int) -> tuple[str, dict[str, str]]:
    """Return this Python, or the system's of the same version if this Python is in root's home."""
    packages = f"{sysconfig.get_path('purelib')}:{ROOT / 'agent'}:{ROOT}"
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    found: list[str] = []
    for python in (sys.executable, system):
        environment = {"PYTHONPATH": packages, "HOME": "/"}
        asked = [python, "-c", "import edgepack.agent.cli, onnxruntime"]
        try:
            done = subprocess.run(
                asked,
                user=uid,
                cwd="/",
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            found.append(f"{python}: {error}")
            continue
        if done.returncode == 0:
            return python, environment
        found.append(f"{python}: {done.stderr.strip().rpartition(chr(10))[2]}")
    raise AssertionError(f"no Python here may be started by another user: {found}")
