"""The agent's settings: every version of their form, and additions of newer versions."""

from pathlib import Path

import pytest

from edgepack.agent.config import AgentConfig, read_config
from edgepack.errors import DeviceError

FIRST = 'device = "cam-1"\nstate_dir = "state"\n[trust]\nkeys = ["release.pub"]\n'


def read(folder: Path, text: str) -> AgentConfig:
    path = folder / "agent.toml"
    path.write_text(text)
    return read_config(path)


def test_settings_without_a_version_are_those_of_the_first(tmp_path: Path) -> None:
    assert read(tmp_path, FIRST) == read(tmp_path, "v = 1\n" + FIRST)


def test_keys_that_only_a_newer_minor_version_has_are_passed_over(tmp_path: Path) -> None:
    grown = f'v = 1\nminor = 7\nmood = "good"\n{FIRST}moods = ["good"]\n[limits]\npatience_s = 3\n'
    assert read(tmp_path, grown) == read(tmp_path, FIRST)
    with pytest.raises(DeviceError, match="unknown key 'mood'"):
        read(tmp_path, 'mood = "good"\n' + FIRST)


def test_what_is_known_in_a_newer_minor_version_is_still_checked(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="tenant must be a text, and is 3"):
        read(tmp_path, "v = 1\nminor = 7\ntenant = 3\n" + FIRST)


def test_settings_of_a_newer_major_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DeviceError, match=r"settings are of version 2\.0, this edgepack reads 1\.0"
    ):
        read(tmp_path, "v = 2\n" + FIRST)


@pytest.mark.parametrize("version", ['"1"', "-1", "1.5", "true"])
def test_a_version_that_is_none_is_named(tmp_path: Path, version: str) -> None:
    with pytest.raises(DeviceError, match="is not a version") as caught:
        read(tmp_path, f"v = {version}\n" + FIRST)
    assert "agent.toml, v" in str(caught.value)


@pytest.mark.parametrize(
    "wrong", ["share = 1.5", "share = -0.1", "busy_share = 0", "memory_bytes = -1"]
)
def test_shares_and_limits_of_shadow_inferences_are_checked(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(DeviceError) as caught:
        read(tmp_path, f"{FIRST}[shadow]\n{wrong}\n")
    assert f"agent.toml, shadow.{wrong.split()[0]}" in str(caught.value)


def test_shadow_inferences_are_off_unless_settings_ask_for_them(tmp_path: Path) -> None:
    assert read(tmp_path, FIRST).shadow.share == 0.0
