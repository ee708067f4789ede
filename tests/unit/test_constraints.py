"""What a device is pinned to is what was tested."""

import re
from collections.abc import Iterable
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


def _hashed_pins(path: Path) -> set[str]:
    """Return the pins of a requirements file, each of which must have a hash."""
    entries = [entry.splitlines() for entry in re.split(r"\n(?=\S)", path.read_text().strip())]
    for entry in entries:
        hashes = [line.strip().removesuffix(" \\") for line in entry[1:]]
        assert hashes, entry[0]
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), entry[0]
    return {entry[0].removesuffix(" \\") for entry in entries}


def _versions(pins: Iterable[str]) -> set[str]:
    """Return pins without the markers that say where they are installed."""
    return {pin.partition(" ;")[0] for pin in pins}


REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_every_file_that_an_environment_installs_has_a_pinned_hash(path: Path) -> None:
    pins = _hashed_pins(path)
    if path.stem not in ("oldest", "models", "pip", "build"):
        assert _versions(pins) <= _versions(_pins("constraints.txt")), "make pins"


def test_images_are_named_by_digest() -> None:
    folder = ROOT / "examples" / "deploy"
    named = [
        match
        for path in folder.rglob("*")
        if path.suffix in (".yaml", "") and path.is_file()
        for match in re.findall(r"^(?:FROM|\s+image:) (\S+:\S+)$", path.read_text(), re.M)
    ]
    assert len(named) >= 4
    assert all(re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", name) for name in named), named


def test_an_image_installs_files_with_pinned_hashes_alone() -> None:
    text = (ROOT / "examples" / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install [^&\n]*", text)
    assert len(installs) >= 2
    assert all("--require-hashes" in line or line.rstrip().endswith("/source") for line in installs)
    assert all("--no-deps" in line for line in installs)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_device_installs_what_constraints_for_devices_name(provider: str) -> None:
    pins = _hashed_pins(ROOT / "requirements" / f"device-{provider}.txt")
    assert pins <= _pins("constraints-device.txt"), "make pins"
    needed = {
        parsed.name
        for line in requires("edgepack") or ()
        for parsed in (Requirement(line),)
        for extra in ("", provider)
        if parsed.marker is None or parsed.marker.evaluate({"extra": extra})
    }
    assert needed <= {pin.partition("==")[0] for pin in pins}, "make pins"
