"""Versions of the tools that take part in a build."""

import platform
from importlib.metadata import PackageNotFoundError, version

_TOOLS = ("edgepack", "onnx", "numpy", "onnxruntime", "onnxruntime-openvino", "onnxruntime-qnn")


def tool_versions() -> dict[str, str]:
    """Name and version of each tool that is installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
