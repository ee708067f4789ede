"""ONNX Runtime's texts in messages."""

from edgepack.agent.runtime.child import run_child
from edgepack.agent.runtime.runtime_words import first_line, remedy_of
from tests.simulators.children import child

_LINE = (
    "\x1b[1;31m2026-11-22 23:47:19.110310856 [E:onnxruntime:, sequential_executor.cc:677 "
    "ExecuteKernel] Non-zero status code returned while running Gather node.\x1b[m"
)


def test_the_last_words_of_a_child_come_without_colour_and_places_in_the_source() -> None:
    dying = f"import sys; sys.stderr.write({_LINE!r} + '\\n\\x1b[m\\n'); sys.exit(3)"
    ending = run_child(child(dying), b"", timeout_s=400.0)
    assert ending.because == (
        "ended with exit code 3: Non-zero status code returned while running Gather node."
    )


def test_a_warning_is_not_what_a_child_ended_of() -> None:
    warning = _LINE.replace("[E:onnxruntime:", "[W:onnxruntime:")
    lines = f"{_LINE}\n{warning}\n"
    dying = f"import sys; sys.stderr.write({lines!r}); sys.exit(3)"
    assert run_child(child(dying), b"", timeout_s=400.0).because.endswith("running Gather node.")
    dying = f"import sys; sys.stderr.write({warning!r}); sys.exit(3)"
    assert run_child(child(dying), b"", timeout_s=400.0).because == "ended with exit code 3"


def test_an_error_s_words_come_without_colour() -> None:
    error = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : \x1b[1;31mno such device\x1b[m\nmore")
    assert first_line(error) == "no such device"


def test_a_line_of_the_log_in_an_error_comes_as_plain_words() -> None:
    assert first_line(RuntimeError(_LINE)) == (
        "Non-zero status code returned while running Gather node."
    )


def test_what_to_try_is_right_for_who_builds_and_for_who_runs() -> None:
    messages = ("opset 25", "invalid context", "x.bin not found", "bad alloc", "anything else")
    for remedy in map(remedy_of, messages):
        assert "agent" not in remedy
        assert "device" not in remedy
