"""`edgepack` and `edgepack-agent` as processes that start in a tenth of the processor time.

Imports take most of the time of a short command. A server process for each program imports the
modules
once and forks for each start: with its own arguments, environment, folder, files and process id, as
a child of the test. Command lines without a console script or its module start as usual, as do
command lines with other variables that Python or the loader reads at the start.

    test            server              program
      │ fork/exec ───▶│ imports
      │ request ─────▶│ forks twice ─────▶│ main()
      │◀── process id │                   │
      │◀───────────────── adopts ─────────│
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_IMPORTS = {
    "agent": (
        *("edgepack.agent.cli", "edgepack.agent.cli.assembly", "edgepack.agent.cli.describe"),
        *("edgepack.agent.enrolment.installation", "edgepack.agent.update.local_install"),
        "onnxruntime",
    ),
    "fleet": (
        *("edgepack.cli", "edgepack.fleet.server.serve", "edgepack.fleet.commands.fleet"),
        *("edgepack.fleet.commands.rollout", "edgepack.fleet.commands.publishing"),
        *("edgepack.fleet.dashboard.routes", "anyio._backends._asyncio", "sqlite3", "psycopg"),
    ),
    "packager": ("edgepack.cli", "edgepack.packager.cli.build", "edgepack.packager.pipeline.build"),
}
_SCRIPTS = {
    str(Path(sys.executable).with_name("edgepack")): "edgepack.cli",
    str(Path(sys.executable).with_name("edgepack-agent")): "edgepack.agent.cli",
}
_OF_THE_PACKAGER = frozenset({"agent-release", "build", "init", "profiles", "compare", "delta"})
_READ_AT_THE_START = (*("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "ORT_"),)
_PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
_USUAL = {
    **dict.fromkeys(("executable", "preexec_fn", "shell"), (None, False)),
    **dict.fromkeys(("gid", "gids", "uid", "pass_fds"), (None, ())),
    **dict.fromkeys(("umask", "process_group"), (None, -1)),
}
"""What a warm start has of the settings of `Popen` that it cannot change."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
"""Imports start no threads, since a fork would lose them."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of <linux/prctl.h>: the process adopts children of its children."""


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
    return _SCRIPTS.get(shown[0], ""), shown[1:], False


def _program_of(words: Any, given: dict[str, Any]) -> str:
    """Return the server that can start a command line; "" if none can."""
    module, arguments, _ = _split(words)
    if any(given[name] not in usual for name, usual in _USUAL.items()):
        return ""
    if _start_settings(given["env"] or os.environ) != _start_settings(os.environ):
        return ""
    if module == "edgepack.agent.cli":
        return "agent"
    if module == "edgepack.cli":
        return "packager" if {*arguments[:1]} & _OF_THE_PACKAGER else "fleet"
    return ""


def _start_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_THE_START)
    }


class _Server:
    """A process that has imported a program and forks the program. The process ends when its socket
    is closed.
    """

    def __init__(self, program: str) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno()), program],
                pass_fds=[other.fileno()],
                cwd=_ROOT,
                env={**os.environ, **_ONE_THREAD},
            )
        atexit.register(self._stop)
        assert self._socket.recv(1) == b"r", f"the server of {program} did not start"

    def _stop(self) -> None:
        self._socket.close()
        self._process.wait()

    def start(self, request: dict[str, Any], files: list[int]) -> int:
        """Start the program as a child of this process and return its process id."""
        body = json.dumps(request).encode()
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [len(body).to_bytes(4)], files)
                self._socket.sendall(body)
                return int.from_bytes(_read(self._socket, 4))
            finally:
                _adopt_orphans(False)


_server = cache(_Server)


def _adopt_orphans(is_wanted: bool) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, int(is_wanted), 0, 0, 0)


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
        if program := os.fork():
            os.write(write_end, program.to_bytes(4))
            os._exit(0)
        for number, file in enumerate(files):
            os.dup2(file, number)
        control.detach()
        os.closerange(3, 1024)
        request: dict[str, Any] = json.loads(body)
        return request


def _become(request: dict[str, Any]) -> None:
    """Take over all by which a process differs from the server."""
    if request["is_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    name = "edgepack-agent" if request["module"] == "edgepack.agent.cli" else "edgepack"
    sys.argv = [name, *request["words"]]
    if request["is_folder_on_path"]:
        sys.path.insert(0, request["folder"])
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in _IMPORTS[sys.argv[2]]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    control.sendall(b"r")
    request = _await_request(control)
    _become(request)
    importlib.import_module(request["module"]).main()


if __name__ == "__main__":
    _main()
