"""What a device is pinned to is what was tested."""

from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROVIDERS = ("cpu", "qnn", "openvino")


def _pins(name: str) -> set[str]:
    lines = (ROOT / name).read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", " "))}


def test_a_device_is_pinned_to_what_the_project_is_tested_with() -> None:
    assert _pins("constraints-device.txt") <= _pins("constraints.txt")


def test_every_requirement_of_a_device_is_pinned() -> None:
    needed = {
        parsed.name
        for text in requires("edgepack") or ()
        for parsed in (Requirement(text),)
        for extra in ("", *PROVIDERS)
        if parsed.marker is None or parsed.marker.evaluate({"extra": extra})
    }
    pinned = {line.partition("==")[0] for line in _pins("constraints-device.txt")}
    assert {"msgspec", "onnxruntime", "onnxruntime-openvino"} <= needed
    assert needed <= pinned
