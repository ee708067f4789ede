"""Python children start in one place, isolated, with a chosen environment."""

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.python_child import (
    PIPE,
    child_environment,
    foreign_python_command,
    python_command,
    start_python,
)

ROOT = Path(__file__).parents[2]
SOURCES = ("agent", "packager", "fleet", "profiles", "firmware_hooks")
ALLOWED = {
    "agent/edgepack/python_child.py": "starts every Python child",
    "agent/edgepack/agent/hooks/process.py": "starts executables with an environment of their own",
    "agent/edgepack/agent/service/system_commands.py": "runs the service manager's programs",
    "packager/edgepack/packager/boards/keeper.py": "starts the agent's children on a board",
    "packager/edgepack/packager/boards/ssh_stream.py": "starts the system's ssh",
    "firmware_hooks/edgepack/firmware_hooks/answer.py": "runs the system's commands in a hook",
}
STARTERS = frozenset(("subprocess", "multiprocessing", "pty", "_posixsubprocess"))
CALLS = ("exec", "spawn", "posix_spawn", "fork", "popen", "system")
POOLS = frozenset(("ProcessPoolExecutor", "create_subprocess_exec", "create_subprocess_shell"))


def starts_of_processes(tree: ast.AST) -> Iterator[str]:
    """Yield each way to start a process that a module names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in STARTERS)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            names = {name.name for name in node.names}
            if module in STARTERS or names & POOLS:
                yield f"from {node.module} import {', '.join(sorted(names))}"
            elif module == "os":
                yield from (f"os.{name}" for name in names if name.startswith(CALLS))
        elif isinstance(node, ast.Attribute):
            is_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if (is_os and node.attr.startswith(CALLS)) or node.attr in POOLS:
                yield node.attr


def test_no_other_module_starts_a_process() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): sorted(starts)
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        if (starts := set(starts_of_processes(ast.parse(path.read_text()))))
    }
    assert {path: starts for path, starts in found.items() if path not in ALLOWED} == {}
    assert found.keys() == ALLOWED.keys()


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "import multiprocessing.pool",
        "from subprocess import run",
        "from os import execv",
        "import os\nos.fork()",
        "import os\nos.posix_spawn('x', [], {})",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "from concurrent.futures import ProcessPoolExecutor",
    ],
)
def test_the_scan_finds_a_start(code: str) -> None:
    assert list(starts_of_processes(ast.parse(code)))


def test_a_child_without_isolation_is_not_started() -> None:
    with pytest.raises(ValueError, match="must run with -P or -I"):
        start_python((sys.executable, "-m", "json"), stdin=PIPE, stdout=PIPE, stderr=PIPE)


def test_the_current_folder_is_on_no_childs_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(variable, f":.:relative:{os.environ.get(variable, '/usr/lib')}")
    code = "import os, sys; print(sys.path, [os.environ[n] for n in ('PATH', 'LD_LIBRARY_PATH')])"
    for command in (
        (*python_command("m")[:2], "-c", code),
        foreign_python_command(sys.executable, "-c", code),
    ):
        with start_python(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as child:
            said, errors = child.communicate(timeout=400)
        assert child.returncode == 0, errors
        assert b"relative" not in said
        assert b"''" not in said
        assert str(tmp_path).encode() not in said


def test_no_secret_reaches_a_childs_environment() -> None:
    names = """
        EDGEPACK_PKCS11_PIN EDGEPACK_KEY_PASSPHRASE EDGEPACK_REGISTRY_PASSWORD EDGEPACK_KEY
        EDGEPACK_REGISTRY_USER EDGEPACK_FLEET_TOKEN EDGEPACK_FLEET_DATABASE HF_TOKEN PGPASSWORD
        AWS_SECRET_ACCESS_KEY HTTPS_PROXY XDG_SESSION_TOKEN PYTHONSTARTUP PYTHONWARNINGS
        SSH_AUTH_SOCK
    """
    secrets = dict.fromkeys(names.split(), "secret")
    needed = {
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "ORT_DISABLE_TELEMETRY": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "EDGEPACK_MEMORY_DIR": "/dev/shm",
        "CUDA_VISIBLE_DEVICES": "0",
        "ADSP_LIBRARY_PATH": "/usr/lib/dsp;/vendor/dsp",
        "PATH": "/usr/bin:/bin",
    }
    assert child_environment(secrets | needed) == needed
