"""Which ends of a real process with a model count as deaths by the model."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.agent.state.holders import HolderWatch, open_holders
from edgepack.agent.state.state_file import RUNTIME_LINK
from edgepack.agent.telemetry.spool import open_spool
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

BEGIN = """
import ctypes, multiprocessing, os, signal, sys, threading, time
from edgepack.agent import open_model
from tests.unit.agent_runtime.examples import make_inputs

def say(*words):
    print(*words, flush=True)

def use(_=None):
    global model
    model = open_model("tiny", sys.argv[1])
    model.run(make_inputs(1)[0])

def stay(_=None):
    # Nothing in Python runs meanwhile: this call holds the interpreter's lock.
    say("ready")
    while True:
        ctypes.PyDLL(None).pause()

def run(call):
    model._opened().session.run = call
    model.run(make_inputs(1)[0])
"""
INFERRING, IDLE = "use(); run(stay)", "use(); stay()"


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    assert open_spool(tmp_path) == ""
    assert open_holders(tmp_path) == ""
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    return tmp_path


def end(state_dir: Path, script: str, number: signal.Signals | None = None) -> int:
    """Run a script, end it by a signal once it is ready; return the number of deaths."""
    command = [sys.executable, "-c", BEGIN + script, str(state_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if number is not None:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == (-number if number else 0), errors
    assert errors == ""
    seen = HolderWatch(state_dir).look()
    assert seen.held == ()
    return len(seen.deaths)


@pytest.mark.parametrize(
    ("script", "number", "deaths"),
    [
        (INFERRING, signal.SIGTERM, 0),
        (f"signal.signal(signal.SIGINT, signal.SIG_DFL); {INFERRING}", signal.SIGINT, 0),
        (INFERRING, signal.SIGKILL, 1),
        (INFERRING, signal.SIGABRT, 1),
        (IDLE, signal.SIGKILL, 0),
    ],
)
def test_only_a_crash_or_a_kill_in_an_inference_is_a_death(
    state_dir: Path, script: str, number: signal.Signals, deaths: int
) -> None:
    assert end(state_dir, script, number) == deaths


@pytest.mark.parametrize(
    ("script", "number", "deaths"),
    [
        (INFERRING, signal.SIGTERM, 0),
        (INFERRING, signal.SIGKILL, 1),
        (IDLE, signal.SIGKILL, 0),
    ],
)
def test_ends_are_told_apart_without_a_runtime_directory(
    state_dir: Path, script: str, number: signal.Signals, deaths: int
) -> None:
    (state_dir / RUNTIME_LINK).unlink()
    assert end(state_dir, script, number) == deaths


WORKERS = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(use, range(2))
"""
DEAD_WORKER = """
use()
begun, begin = os.pipe()
pid = os.fork()
if not pid:
    os.write(begin, b"x")
    signal.pause()
os.read(begun, 1)
os.kill(pid, signal.SIGTERM)
os.waitpid(pid, 0)
run(stay)
"""
TWO_MODELS = """
use()
other = model
use()
model.close()
model = other
run(stay)
"""
CLOSED = """
kept = lambda *_: (say("handled"), sys.exit(0))
use()
signal.signal(signal.SIGTERM, kept)
use()
model.close()
use()
signal.raise_signal(signal.SIGTERM)
raise SystemExit("the handler is gone")
"""


@pytest.mark.parametrize(
    ("script", "number", "deaths"),
    [
        (WORKERS, None, 0),
        (DEAD_WORKER, signal.SIGKILL, 1),
        (TWO_MODELS, signal.SIGTERM, 0),
        (TWO_MODELS, signal.SIGKILL, 1),
        (CLOSED, None, 0),
    ],
)
def test_workers_and_handlers_of_the_program_are_respected(
    state_dir: Path, script: str, number: signal.Signals | None, deaths: int
) -> None:
    assert end(state_dir, script, number) == deaths
