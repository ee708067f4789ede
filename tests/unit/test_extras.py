"""The command that installs an optional part of edgepack."""

from pathlib import Path

import pytest

from edgepack import extras
from edgepack.extras import install_command


def test_a_system_package_installs_into_the_folder_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_command("images") == "pip install 'edgepack[images]'"
    monkeypatch.setattr(extras, "_ADDED", tmp_path / "added.pth")
    (tmp_path / "added.pth").write_text("/usr/local/lib/edgepack\n")
    command = install_command("images")
    assert "-m pip install --target /usr/local/lib/edgepack 'pillow" in command
    assert "tokenizers" in install_command("generative")
