"""What ONNX Runtime says when it fails, in one line, and what to try then."""

import re

_REMEDIES = (
    (r"IR version|opset", "update onnxruntime on this device, or build for its version"),
    (r"1100|context|Ctx", "build without a precompiled context, or with one for this chip and SDK"),
    (r"doesn't exist|No such file|not found|External data", "fetch the variant's files again"),
    (r"memory|alloc", "use a smaller variant, or free memory"),
)
"""What to try by what ONNX Runtime complains of; the first that fits is said."""


def first_line(error: Exception) -> str:
    """ONNX Runtime's message without its preamble, cut at 300 characters."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    return (text.splitlines() or [type(error).__name__])[0][:300]


def remedy_of(message: str) -> str:
    """What to try, by what ONNX Runtime complains of."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message):
            return remedy
    return "another variant; `edgepack-agent providers` tells what this device has"
