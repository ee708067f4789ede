"""ONNX Runtime reports nothing to its vendor, unless the user allows telemetry.

Its wheels of the latest releases look up a host of their vendor's and write an identifier into the
user's home. The wheels read this variable only at load time
(https://github.com/microsoft/onnxruntime/pull/27379): each process sets the variable before that.
"""

import os

VARIABLE = "ORT_DISABLE_TELEMETRY"


def disable_vendor_telemetry() -> None:
    """Set the variable for this process and its children; a value that the user gave stays."""
    os.environ.setdefault(VARIABLE, "1")
