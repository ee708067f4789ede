"""What a device is pinned to is what was tested."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
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


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_file_that_a_device_installs_has_a_pinned_hash(provider: str) -> None:
    text = (ROOT / "requirements" / f"device-{provider}.txt").read_text()
    entries = [entry.splitlines() for entry in re.split(r"\n(?=\S)", text.strip())]
    pins = {entry[0].removesuffix(" \\") for entry in entries}
    assert pins <= _pins("constraints-device.txt"), "make pins"
    for entry in entries:
        hashes = [line.strip().removesuffix(" \\") for line in entry[1:]]
        assert hashes, entry[0]
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), entry[0]
    needed = {
        parsed.name
        for line in requires("edgepack") or ()
        for parsed in (Requirement(line),)
        for extra in ("", provider)
        if parsed.marker is None or parsed.marker.evaluate({"extra": extra})
    }
    assert needed <= {pin.partition("==")[0] for pin in pins}, "make pins"
