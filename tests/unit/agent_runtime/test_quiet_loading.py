"""Messages of ONNX Runtime at its import stay off stderr, and nothing else does."""

from edgepack.agent.runtime.child import run_child
from tests.simulators.children import child

_LOGGED = (
    "\x1b[0;93m2026-11-23 03:14:15.724408382 [W:onnxruntime:Default, device_discovery.cc:322 "
    'GetGpuDevices] Failed to detect devices under "/sys/class/drm/card0"\x1b[m\n'
)


def test_only_lines_of_the_log_are_kept_off() -> None:
    script = f"""
import os, sys
from edgepack.agent.runtime.quiet_loading import without_log_lines

try:
    with without_log_lines():
        os.write(2, {_LOGGED!r}.encode())
        print("a word of somebody else's", file=sys.stderr)
        os.write(2, {_LOGGED!r}.encode())
        raise ImportError("and what went wrong")
except ImportError as error:
    sys.stderr.write(str(error))
    sys.stderr.flush()
os.write(1, str(os.fstat(2).st_size).encode())
"""
    words = "a word of somebody else's\nand what went wrong"
    ending = run_child(child(script), b"", timeout_s=400.0)
    assert ending.answer == str(len(words)).encode(), "so much was written, and no more"


def test_a_process_without_stderr_loads_it_too() -> None:
    script = """
import os
from edgepack.agent.runtime.providers import load_runtime
os.write(1, load_runtime().__name__.encode())
"""
    program, *words = child(script)
    closed = child(f"import os; os.close(2); os.execv({program!r}, {[program, *words]!r})")
    assert run_child(closed, b"", timeout_s=400.0).answer == b"onnxruntime"


def test_threads_that_load_it_at_once_take_turns() -> None:
    script = """
import importlib, os, threading, time
from edgepack.agent.runtime.providers import load_runtime
real, inside, most = importlib.invalidate_caches, [], [0]
def slow():
    inside.append(0)
    most[0] = max(most[0], len(inside))
    time.sleep(0.1)
    real()
    inside.pop()
importlib.invalidate_caches = slow
loaded = []
threads = [threading.Thread(target=lambda: loaded.append(load_runtime())) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
os.write(1, f"{len(loaded)} {most[0]}".encode())
"""
    assert run_child(child(script), b"", timeout_s=400.0).answer == b"8 1"
