"""Programs with keys in memory leave no core file, and other processes cannot read the keys."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.device import Device, running, wait_for_line
from tests.simulators.users import made_user

DUMPABLE = """
import ctypes, sys
from pathlib import Path
sys.argv = ["edgepack", "keys", "show", sys.argv[1]]
try:
    run_command()
except SystemExit:
    pass
print("dumpable", ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def allow_core_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def core_limit(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4]


@pytest.mark.parametrize("program", ["edgepack.cli", "edgepack.agent.cli.commands"])
def test_programs_that_load_keys_forbid_core_files_first(program: str) -> None:
    script = f"from {program} import run_command\n{DUMPABLE}"
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        preexec_fn=allow_core_files,
    )
    assert "dumpable 0" in done.stdout, done.stderr


def test_an_agent_that_aborts_leaves_no_core_file(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most == 0:
        pytest.skip("no core files here: the hard limit is 0")
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    monkeypatch.chdir(tmp_path)
    try:
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
        with running(device):
            wait_for_line(device, "connected to")
            assert device._process is not None
            assert core_limit(device._process.pid) == "0"
            device._process.send_signal(signal.SIGABRT)
            assert device._process.wait(400) == -signal.SIGABRT
            status = device._process.returncode
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, most))
    assert status == -signal.SIGABRT
    assert not list(tmp_path.rglob("core*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users; CI is root")
def test_a_process_that_is_not_dumpable_still_reads_its_own_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own = f"/tmp/edgepack-own-{os.getpid()}.txt"
    script = (
        "import sys; from pathlib import Path\n"
        "from edgepack.core_files import forbid_core_files; forbid_core_files()\n"
        "from edgepack.agent.state.state_file import read_shared\n"
        f"own = Path({own!r}); own.write_text('mine')\n"
        "print(read_shared(own))\n"
        "print(len(list(Path('/proc/self/fd').iterdir())) > 2)\n"
        "own.unlink()\n"
    )
    with made_user(f"edgepack-core-{os.getpid()}") as user:
        started = user.popen([user.python, "-c", script], stdout=subprocess.PIPE)
        assert started.communicate(timeout=400)[0] == b"b'mine'\nTrue\n"
