"""ONNX Runtime tells its vendor nothing of what runs here, unless the user wants it to.

Its wheels of the latest releases look up a host of their vendor's and write an identifier into the
user's home. They ask this variable when the library is loaded, and never again
(https://github.com/microsoft/onnxruntime/pull/27379): each process sets it before that.
"""

import os

VARIABLE = "ORT_DISABLE_TELEMETRY"


def disable_vendor_telemetry() -> None:
    """Set the variable for this process and its children; a value that the user gave stays."""
    os.environ.setdefault(VARIABLE, "1")
