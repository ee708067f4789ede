"""Every `install` line of the page on hooks installs a runnable hook."""

import re
import shlex
from pathlib import Path

import pytest

from edgepack.firmware_hooks.__main__ import main
from edgepack.firmware_hooks.install import HOOKS

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
LINES = [
    shlex.split(line)
    for line in re.findall(
        r"^\$ python -P -m edgepack\.firmware_hooks (install [a-z].*)$",
        (PAGES / "hooks.md").read_text().replace("\\\n", " "),
        re.M,
    )
]


@pytest.mark.parametrize("words", LINES, ids=lambda words: f"{words[1]} {words[3]}.{words[5]}")
def test_a_documented_install_line_is_accepted(words: list[str], tmp_path: Path) -> None:
    here = [str(tmp_path) if word == "/etc/edgepack/hooks" else word for word in words]
    assert main(here) == 0
    assert list(tmp_path.glob(f"*.d/50-{words[1]}"))


def test_every_reference_hook_has_an_example() -> None:
    assert {words[1] for words in LINES} == set(HOOKS)
