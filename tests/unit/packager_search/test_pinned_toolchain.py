"""Environments that are named for profiles: what they must be, and what is said if they are not."""

import sys
from pathlib import Path

import msgspec
import pytest

from edgepack.agent.runtime.facts import read_device_facts
from edgepack.errors import BuildError
from edgepack.packager.cli.option_values import parse_toolchain
from edgepack.packager.config.build_file import read_config
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.evaluator import find_venue
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain, pin_toolchains

CPU = load_profile("cpu")


def script(path: Path, *lines: str) -> str:
    """An executable that ends as its lines say, whatever it is asked."""
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return str(path)


def test_an_environment_says_what_a_device_with_it_has() -> None:
    pinned = pin_toolchains({"cpu": sys.executable}, [CPU])["cpu"]
    assert pinned.facts.runtime == read_device_facts().runtime
    assert pinned.words == f"Python {pinned.facts.python}, onnxruntime {pinned.facts.runtime}"
    venue = find_venue(CPU, pinned)
    assert (venue.is_native, venue.can_run, venue.toolchain) == (True, True, pinned)


def test_a_name_that_is_no_profile_of_the_build_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        pin_toolchains({"openvino-cpu": sys.executable}, [CPU])
    assert caught.value.problem == "a toolchain is named for 'openvino-cpu', which is not built"
    assert caught.value.remedy == "one of cpu"


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    for named in (str(tmp_path), str(tmp_path / "none"), "no-such-python"):
        with pytest.raises(BuildError, match="not a program that can be run") as caught:
            pin_toolchains({"cpu": named}, [CPU])
        assert caught.value.found_in == f"--toolchain cpu={named}"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            ("echo 'No module named edgepack' >&2", "exit 1"),
            "does not say what it has: ended with exit code 1: No module named edgepack",
        ),
        (("echo hello",), "its answer cannot be read"),
    ],
)
def test_an_environment_that_is_no_devices_is_refused_with_what_it_said(
    lines: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    python = script(tmp_path / "python", *lines)
    with pytest.raises(BuildError, match=problem) as caught:
        pin_toolchains({"cpu": python}, [CPU])
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(f"{python} -m pip install 'edgepack[")


def test_another_release_of_edgepack_is_refused(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(read_device_facts(), agent_version="9.9")
    said = tmp_path / "facts.json"
    said.write_bytes(msgspec.json.encode(facts))
    with pytest.raises(BuildError, match=r"has edgepack 9\.9, and this is"):
        pin_toolchains({"cpu": script(tmp_path / "python", f"cat {said}")}, [CPU])


def test_an_environment_without_the_profiles_provider_is_refused() -> None:
    facts = msgspec.structs.replace(read_device_facts(), providers=())
    with pytest.raises(BuildError, match="the toolchain named for 'cpu' cannot run it") as caught:
        find_venue(CPU, PinnedToolchain(python=sys.executable, facts=facts))
    assert caught.value.found_in == f"Python {facts.python}, onnxruntime {facts.runtime}"


@pytest.mark.parametrize("text", ["openvino-cpu", "=python", "openvino-cpu="])
def test_an_option_without_profile_or_interpreter_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="names no toolchain") as caught:
        parse_toolchain(text)
    assert caught.value.remedy == "--toolchain openvino-cpu=device/bin/python"


def test_a_path_in_the_file_is_that_of_the_files_folder_and_a_command_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text('[build]\ntoolchain = { cpu = "device/bin/python", fp32 = "python3.11" }\n')
    assert read_config(path).build.toolchain == {
        "cpu": str(tmp_path / "device/bin/python"),
        "fp32": "python3.11",
    }
