"""Python interpreter with AMD Quark.

Quark needs an older onnx than ours, PyTorch and a C++ compiler, so Quark usually lives in a
separate environment, which a variable names.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping

from edgepack.errors import BuildError

VARIABLE = "EDGEPACK_QUARK_PYTHON"
_INSTALL = (
    "python -m venv quark && quark/bin/pip install amd-quark 'onnx<=1.22' onnxruntime torch, "
    f"then {VARIABLE}=quark/bin/python"
)


def find_quark(
    environment: Mapping[str, str] = os.environ,
    is_here: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> str:
    """Return the interpreter for Quark: the named interpreter, or this interpreter if Quark is
    installed.

    Args:
        environment: Environment variables.
        is_here: Whether this interpreter can import a package.

    Raises:
        BuildError: The named path is not a program, or no path is named and Quark is not here.
    """
    named = environment.get(VARIABLE, "")
    if named:
        program = shutil.which(named)
        if program is None:
            raise BuildError(
                f"{VARIABLE} names no program: {named}",
                found_in="pass quantize, backend = 'quark'",
                remedy=_INSTALL,
            )
        return program
    if is_here("quark"):
        return sys.executable
    raise BuildError(
        "AMD Quark is not installed here, and no environment that has it is named",
        found_in="pass quantize, backend = 'quark'",
        remedy=_INSTALL,
    )
