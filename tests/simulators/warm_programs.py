"""`edgepack` and `edgepack-agent` as processes that start in a tenth of the processor time.

Imports take most of the time of a short command. A server process for each program imports the
modules once and forks for each start: with its own arguments, environment, folder, files and
process id, as a child of the test. Command lines without a console script or its module start as
usual, as do command lines with other variables that Python or the loader reads at the start.

    test            server              program
      │ fork/exec ───▶│ imports
      │ request ─────▶│ forks twice ─────▶│ main()
      │◀── process id │                   │
      │◀───────────────── adopts ─────────│

Python children of a program start in the same way, from a fork of the program that was made before
its first thread; children of the test itself from a server, within `warm_children`.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgepack import python_child

_ROOT = Path(__file__).parents[2]
_CHILDREN = (
    *("edgepack.agent.generation.probing", "edgepack.agent.runtime.facts"),
    *("edgepack.agent.runtime.shadow", "edgepack.agent.runtime.verifying"),
    *("edgepack.packager.runtime.trial", "edgepack.packager.stages.running_child"),
)
"""Modules that programs start as children."""
_IMPORTS = {
    "children": (*_CHILDREN, "onnxruntime"),
    "agent": (
        *("edgepack.agent.cli", "edgepack.agent.cli.assembly", "edgepack.agent.cli.describe"),
        *("edgepack.agent.enrolment.installation", "edgepack.agent.update.local_install"),
        *_CHILDREN,
        "onnxruntime",
    ),
    "fleet": (
        *("edgepack.cli", "edgepack.fleet.server.serve", "edgepack.fleet.commands.fleet"),
        *("edgepack.fleet.commands.rollout", "edgepack.fleet.commands.publishing"),
        *("edgepack.fleet.dashboard.routes", "anyio._backends._asyncio", "sqlite3", "psycopg"),
    ),
    "packager": (
        *("edgepack.cli", "edgepack.packager.cli.build", "edgepack.packager.pipeline.build"),
        *_CHILDREN,
    ),
}
_SCRIPTS = {
    str(Path(sys.executable).with_name("edgepack")): "edgepack.cli",
    str(Path(sys.executable).with_name("edgepack-agent")): "edgepack.agent.cli",
}
_OF_THE_PACKAGER = frozenset({"agent-release", "build", "init", "profiles", "compare", "delta"})
HAVE_CHILDREN = frozenset({"build", "run", "install"})
"""Commands whose children start warm. A test that has to see a child at work may clear it."""
_READ_AT_THE_START = (*("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "ORT_"),)
_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
_USUAL = {
    **dict.fromkeys(("executable", "preexec_fn", "shell"), (None, False)),
    **dict.fromkeys(("gid", "gids", "uid", "pass_fds"), (None, ())),
    **dict.fromkeys(("umask", "process_group"), (None, -1)),
}
"""What a warm start has of the settings of `Popen` that it cannot change."""
_LIMITS = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
"""Imports start no threads, since a fork would lose them."""
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37
"""Of <linux/prctl.h>: whether the process adopts children of its children."""


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` for programs that start warm, and unchanged for all others."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        given = dict(zip(_PARAMETERS, rest, strict=True))
        program = _program_of(args, given)
        if not program:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        files = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        module, words, is_folder_on_path = _split(args)
        request = {
            "module": module,
            "words": words,
            "is_folder_on_path": is_folder_on_path,
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "is_session": bool(given["start_new_session"]),
            "has_children": not HAVE_CHILDREN.isdisjoint(words[:1]),
            "umask": _umask(),
            "limits": {number: resource.getrlimit(number) for number in _LIMITS},
        }
        inherited = [number if file == -1 else file for number, file in enumerate(files)]
        self.pid = _server(program).start(request, inherited)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


def run(
    words: Any,
    *,
    input: Any = None,
    timeout: float | None = None,
    check: bool = False,
    **settings: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does."""
    if settings.pop("capture_output", False):
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        settings["stdin"] = subprocess.PIPE
    with Popen(words, **settings) as process:
        try:
            output, error = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, error)
    if check:
        done.check_returncode()
    return done


def _split(words: Any) -> tuple[str, list[str], bool]:
    """Return a module and its arguments, and whether Python finds modules in the current folder."""
    if isinstance(words, str | bytes):
        return "", [], False
    shown = [os.fspath(word) for word in words]
    if shown[:2] == [sys.executable, "-m"]:
        return shown[2], shown[3:], True
    if shown[:3] == [sys.executable, "-P", "-m"] and shown[3] in _CHILDREN:
        return shown[3], shown[4:], False
    return _SCRIPTS.get(shown[0], ""), shown[1:], False


def _program_of(words: Any, given: dict[str, Any]) -> str:
    """Return the server that can start a command line; "" if none can."""
    module, arguments, _ = _split(words)
    if any(given[name] not in usual for name, usual in _USUAL.items()):
        return ""
    is_child = module in _CHILDREN
    ours = python_child.child_environment(os.environ) if is_child else os.environ
    if _start_settings(given["env"] or os.environ) != _start_settings(ours):
        return ""
    if is_child:
        return "children"
    if module == "edgepack.agent.cli":
        return "agent"
    if module == "edgepack.cli":
        return "packager" if {*arguments[:1]} & _OF_THE_PACKAGER else "fleet"
    return ""


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def _start_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_THE_START)
    }


class _Starter:
    """The way to a process that forks programs. That process ends when the socket is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._lock = threading.Lock()
        self._socket = control

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        """Start the program as a child of this process and return its process id."""
        body = json.dumps(request).encode()
        with self._lock, _adopting_orphans():
            socket.send_fds(self._socket, [len(body).to_bytes(4)], files)
            self._socket.sendall(body)
            return int.from_bytes(_read(self._socket, 4))


_starters: dict[str, _Starter] = {}


def _server(program: str) -> _Starter:
    """Return the way to the server of a program, which starts if this process has none."""
    if program not in _starters:
        control, other = socket.socketpair()
        with other:
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno()), program],
                pass_fds=[other.fileno()],
                cwd=_ROOT,
                env={**os.environ, **_ONE_THREAD},
            )

        def stop() -> None:
            control.close()
            process.wait()

        atexit.register(stop)
        assert control.recv(1) == b"r", f"the server of {program} did not start"
        _starters[program] = _Starter(control)
    return _starters[program]


@contextlib.contextmanager
def warm_children() -> Iterator[None]:
    """Start the Python children of this process warm."""
    names = vars(python_child)
    before, names["subprocess"] = names["subprocess"], SimpleNamespace(Popen=Popen)
    try:
        yield
    finally:
        names["subprocess"] = before


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Adopt orphans in a block; afterwards as before."""
    system, before = ctypes.CDLL(None), ctypes.c_int()
    system.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    system.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        system.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


def _read(source: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        more = source.recv(count - len(content))
        if not more:
            raise EOFError("the other side ended")
        content += more
    return content


def _await_request(control: socket.socket) -> dict[str, Any]:
    """Fork for each request; return in the fork, with its files in place of the standard files."""
    while True:
        header, files, _, _ = socket.recv_fds(control, 4, 3)
        if not header:
            os._exit(0)
        body = _read(control, int.from_bytes(header))
        read_end, write_end = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            for file in (*files, write_end):
                os.close(file)
            control.sendall(os.read(read_end, 4))
            os.close(read_end)
            continue
        starter = os.getpid()
        if program := os.fork():
            os.write(write_end, program.to_bytes(4))
            os._exit(0)
        while os.getppid() == starter:  # A program may ask to end with its parent.
            time.sleep(0.0005)
        for number, file in enumerate(files):
            os.dup2(file, number)
        control.detach()
        os.closerange(3, 1024)
        request: dict[str, Any] = json.loads(body)
        return request


def _fork_for_children() -> dict[str, Any]:
    """Fork a process that forks the children of this program; return the request in a child, or
    nothing in this process.
    """
    control, other = socket.socketpair()
    if server := os.fork():
        other.close()
        if strays := sys.modules.get("edgepack.agent.hooks.strays"):
            children = strays._children
            vars(strays)["_children"] = lambda: [pid for pid in children() if pid != server]
        _starters.clear()
        _starters["children"] = _Starter(control)
        vars(python_child)["subprocess"] = SimpleNamespace(Popen=Popen)
        return {}
    control.close()
    os.setsid()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    request = _await_request(other)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    return request


def _become(request: dict[str, Any]) -> None:
    """Take over all by which a process differs from the server."""
    if request["is_session"]:
        os.setsid()
    os.umask(request["umask"])
    for number, limits in request["limits"].items():
        resource.setrlimit(int(number), limits)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    name = "edgepack-agent" if request["module"] == "edgepack.agent.cli" else "edgepack"
    sys.argv = [name, *request["words"]]
    if request["is_folder_on_path"]:
        sys.path.insert(0, request["folder"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in _IMPORTS[sys.argv[2]]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    control.sendall(b"r")
    request = _await_request(control)
    if request["has_children"]:
        request = _fork_for_children() or request
    _become(request)
    if request["module"] in _CHILDREN:
        del sys.modules[request["module"]]  # it is the main module now
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    else:
        importlib.import_module(request["module"]).main()


if __name__ == "__main__":
    _main()
