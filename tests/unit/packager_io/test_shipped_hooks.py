"""Only a folder with hooks goes into a bundle as one."""

from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.bundling.shipped_firmware import check_shipped_hooks


def _refusal(folder: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        check_shipped_hooks(folder)
    return caught.value


def test_a_missing_folder_is_told_the_option(tmp_path: Path) -> None:
    error = _refusal(tmp_path / "none")
    assert error.problem == "the hook folder does not exist"
    assert (error.remedy or "").endswith("or leave out --hooks")


def test_a_folder_of_something_else_is_not_shipped(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("not for devices")
    (tmp_path / "staged.before.d").mkdir()
    error = _refusal(tmp_path)
    assert error.problem.startswith("the hook folder holds no hook, in none of ")
    assert error.found_in == str(tmp_path)


def test_a_folder_with_one_hook_is_shipped(tmp_path: Path) -> None:
    folder = tmp_path / "staged.before.d"
    folder.mkdir()
    (folder / "look").write_text("#!/bin/sh\nexit 0\n")
    (folder / "look").chmod(0o755)
    check_shipped_hooks(tmp_path)
