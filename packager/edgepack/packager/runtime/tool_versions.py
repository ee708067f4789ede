"""Versions of the tools that take part in a build."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_RUNTIMES = ("onnxruntime", "onnxruntime-openvino", "onnxruntime-qnn")
_TOOLS = ("edgepack", "onnx", "onnxscript", "numpy", *_RUNTIMES)


def tool_versions() -> dict[str, str]:
    """Name and version of each tool that is installed, and of Python."""
    return dict(_read_versions())


@cache
def _read_versions() -> dict[str, str]:
    """Return the same, read once: each version is parsed from a file of its package."""
    found = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
