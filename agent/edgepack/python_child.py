"""Python child processes: the only module that starts child processes.

`python -m` puts the current folder first on the module path, so a file `numpy.py` in that folder
would run with the rights of anyone that runs a command there. Each child therefore

1. runs with `-P` (or `-I`): neither the current folder nor the script's folder is on its path;
2. gets a chosen environment: the variables that the interpreter, the loader and the providers need,
   and no PIN, password or token. Search paths keep their absolute entries only, since an empty or
   relative entry means the current folder.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
TimeoutExpired = subprocess.TimeoutExpired

PythonChild: TypeAlias = subprocess.Popen[bytes]

_ISOLATED = ("-P", "-I")

_SEARCH_PATHS = {
    "PATH": ":",
    "PYTHONPATH": ":",
    "LD_LIBRARY_PATH": ":",
    "DYLD_LIBRARY_PATH": ":",
    "LD_PRELOAD": ":",
    "ADSP_LIBRARY_PATH": ";",  # Qualcomm's loader of DSP libraries
}
"""Variables that name files or folders to load code from, and what separates their entries."""
_NAMES = frozenset(
    (
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "TZ", "USER", "VIRTUAL_ENV"),
        *("TMPDIR", "TEMP", "TMP"),
        *("CC", "CXX", "CONDA_PREFIX", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"),
        *("PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "PYTHONHASHSEED", "PYTHONUTF8"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONFAULTHANDLER"),
        *("EDGEPACK_MEMORY_DIR", "EDGEPACK_DECRYPTION_KEY", "NUM_OF_DPU_RUNNERS"),
        *("RYZEN_AI_INSTALLATION_PATH", "QAIRT_SDK_ROOT", "INTEL_OPENVINO_DIR", "RAI_ROOT"),
    )
)
_PREFIXES = (
    # the system
    *("LC_", "XDG_"),
    # threads and linear algebra
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    # ONNX Runtime, its providers and their drivers
    *("ORT_", "QNN_", "ADSP_", "OV_", "OPENVINO_", "VAIP_", "XLNX_", "XILINX_", "XRT_"),
    *("CUDA_", "NVIDIA_", "ROCR_", "HSA_", "HIP_", "OCL_", "ZE_", "NEOREADDEBUGKEYS"),
    # exporters and quantizers
    *("HF_", "TRANSFORMERS_", "TORCH_", "PYTORCH_"),
)
_SECRET_WORDS = ("TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIAL", "PIN")
"""Words of a variable's name, such as HF_TOKEN, that keep it out whatever its prefix."""


def python_command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of edgepack with this interpreter."""
    return (sys.executable, "-P", "-m", module)


def foreign_python_command(python: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs another environment's interpreter, isolated.

    `-I` exists in every Python 3 and ignores Python's own variables too, which describe this
    environment and not the other.

    Args:
        python: Path of the interpreter.
        words: `-m` and a module, or a script's path.
    """
    return (python, "-I", *words)


def start_python(
    command: Sequence[str],
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    settings: Mapping[str, str] | None = None,
) -> PythonChild:
    """Start a Python child in a session of its own, with a chosen environment.

    Args:
        command: From `python_command` or `foreign_python_command`.
        stdin, stdout, stderr: See `subprocess.Popen`.
        settings: Variables added to `child_environment`.

    Raises:
        ValueError: The command's first option is neither -P nor -I.
        OSError: The child cannot be started.
    """
    if not set(command[1:2]) & set(_ISOLATED):
        raise ValueError(f"a Python child must run with -P or -I: {' '.join(command)}")
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env={**child_environment(os.environ), **(settings or {})},
    )


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python child.

    Args:
        environment: Variables of the parent.
    """
    chosen = {name: value for name, value in environment.items() if _is_chosen(name)}
    for name, separator in _SEARCH_PATHS.items():
        # An entry that is empty or relative depends on the current folder.
        entries = environment.get(name, "").split(separator)
        if kept := separator.join(entry for entry in entries if Path(entry).is_absolute()):
            chosen[name] = kept
    return chosen


def _is_chosen(name: str) -> bool:
    words = name.upper().split("_")
    if any(word in _SECRET_WORDS for word in words):
        return False
    return name in _NAMES or (name.startswith(_PREFIXES) and name not in _SEARCH_PATHS)
