"""ONNX Runtime's telemetry is off before the import of the library, in all parts of the agent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.agent.runtime.vendor_telemetry import VARIABLE
from tests.simulators.pointers import write_pointer
from tests.unit.agent_runtime.examples import install_model

AGENT = Path(__file__).parents[3] / "agent"

# What native code sees when Python begins to load onnxruntime.
WATCH = f"""
import ctypes, sys
from importlib.abc import MetaPathFinder

getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p

class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "onnxruntime":
            print("loading with", getenv(b"{VARIABLE}"), flush=True)

sys.meta_path.insert(0, Watch())
"""
OPEN_MODEL = "from edgepack.agent import open_model; open_model('tiny').close()"
READ_FACTS = "from edgepack.agent.cli import cli; cli(['providers'])"


def watch(code: str, state_dir: Path, **variables: str) -> str:
    """Return the observations during the code in a process with these variables."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", WATCH + code],
        env=environment | {"EDGEPACK_STATE_DIR": str(state_dir)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("code", [OPEN_MODEL, READ_FACTS])
def test_the_runtime_is_loaded_with_its_telemetry_off(code: str, tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    assert watch(code, tmp_path).startswith("loading with b'1'\n")


def test_a_value_that_the_user_gave_stays(tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    assert watch(OPEN_MODEL, tmp_path, **{VARIABLE: "0"}).startswith("loading with b'0'\n")


def test_nothing_below_agent_imports_the_runtime_past_the_one_place_that_switches_it_off() -> None:
    importing = re.compile(r"^\s*(import|from) onnxruntime|import_module\(\"onnxruntime", re.M)
    found = [path.name for path in AGENT.rglob("*.py") if importing.search(path.read_text())]
    assert found == ["providers.py"]
