"""Error messages of ONNX Runtime in a line, with a remedy.

Developers who build a model and operators of devices both read these messages: the words are right
for either.
"""

import re

_REMEDIES = (
    (r"IR version|opset", "another onnxruntime here, or a model that is built for this one"),
    (r"1100|context|Ctx", "build without a precompiled context, or with one for this chip and SDK"),
    (
        r"doesn't exist|No such file|not found|External data",
        "fetch or export the model's files again",
    ),
    (r"memory|alloc", "use a smaller model, or free memory"),
)
"""What to try by what ONNX Runtime complains of; the first that fits is said."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG_PREAMBLE = re.compile(r"^\S+ \S+ \[[A-Z]:onnxruntime:[^\]]*\] ")
_WARNING = re.compile(r"^\S+ \S+ \[[VIW]:onnxruntime:")
_OWN_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*\([^()]*\)(?: const)?(?: \[.*?\])? ?")
_PREAMBLE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed: ?)?(?:Fatal error: )?"
)


def without_colour(line: str) -> str:
    """Return a line of ONNX Runtime's log, without its colours."""
    return _LOG_PREAMBLE.sub("", _COLOUR.sub("", line))


def is_log_line(line: str) -> bool:
    """Return True if a line is of ONNX Runtime's log."""
    return _LOG_PREAMBLE.match(_COLOUR.sub("", line)) is not None


def is_warning(line: str) -> bool:
    """Return True if a line of ONNX Runtime's log warns at most, and says of no failure why."""
    return _WARNING.match(_COLOUR.sub("", line)) is not None


def first_line(error: Exception) -> str:
    """Return the first line of an error of ONNX Runtime, see `first_line_of`; or its kind."""
    return first_line_of(str(error)) or type(error).__name__


def first_line_of(message: str) -> str:
    """Return the first line of ONNX Runtime's message, cut at 300 characters.

    The preamble is cut: codes, the path of the file (often temporary) and places in ONNX Runtime's
    source.
    """
    text = _PREAMBLE.sub("", _OWN_SOURCE.sub("", without_colour(message.strip())))
    return (text.splitlines() or [""])[0][:300]


def remedy_of(message: str) -> str:
    """Return the remedy for an error message of ONNX Runtime."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message):
            return remedy
    return "another variant or profile, or a model without what the message names"
