"""The tutorials, run from top to bottom; README's five minutes are a part of the first.

A block of shell is run. A block of another language with `# NAME` as its first line is saved as
NAME, as the page asks the reader.
"""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLEET_PORTS = (1883, 8600)
"""What `edgepack fleet serve` takes where it is not told otherwise, as in the tutorial."""

_ANSWER = re.compile(r"^\d{4}-(\d)\.png shows a \1\n\Z", re.M)
"""A picture's name ends in its digit, which the model must read."""

pytestmark = pytest.mark.timeout(1200)


def script_of(page: str) -> str:
    """Return a page's blocks as a single shell script."""
    lines = ["set -euo pipefail"]
    for language, block in _blocks(page):
        named = re.match(r"# (\S+\.\w+)\n", block)
        if language == "sh":
            lines.append(block)
        elif named:
            lines.append(f"cat > {named[1]} <<'END OF FILE'\n{block}END OF FILE")
    return "\n".join(lines)


def run_page(page: str, folder: Path) -> str:
    """Run a page's blocks in a folder; return the output."""
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pinned = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    shell = subprocess.Popen(
        ["bash", "-c", script_of(page)],
        cwd=folder,
        env={**os.environ, **here, **pinned, "EDGEPACK_REPOSITORY": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a page starts ends with it
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, printed[-4000:]
    return printed


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the first tutorial in a fresh clone; return the folder and the output."""
    folder = tmp_path_factory.mktemp("tutorial")
    printed = run_page(_page("first-bundle"), folder)
    return folder / "work", printed


def _blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)


def _commands(page: str) -> list[str]:
    shell = "".join(text for language, text in _blocks(page) if language == "sh")
    return [" ".join(line.split()) for line in shell.replace("\\\n", "").splitlines()]


def _files(page: str) -> set[str]:
    return {text for _, text in _blocks(page) if re.match(r"# \S+\.\w+\n", text)}


def test_the_five_minutes_of_the_readme_are_commands_of_the_first_tutorial() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"<!-- five minutes.*?-->(.*?)<!-- /five minutes -->", readme, re.S)
    tutorial = _page("first-bundle")
    run = iter(_commands(tutorial))
    missing = [command for command in _commands(section) if command not in run]
    assert _commands(section)
    assert not missing, "the tutorial does not run these, or runs them in another order"
    assert _files(section) <= _files(tutorial)


def test_the_first_tutorial_prints_what_it_says(tutorial: tuple[Path, str]) -> None:
    folder, printed = tutorial
    assert _ANSWER.search(printed), printed[-2000:]
    assert "meter 1.0.0, release 1000000: verified" in printed
    assert (folder / "meter-1.0.0.edgepack.report.html").is_file()
    assert (folder / "device/models/meter/active.json").is_file()
    assert re.search(r"qnn-htp +\d+ KB +(1\.0000|0\.99\d\d) +\d+/\d+ +simulator\n", printed)
    assert "would be enough" not in printed


def test_the_second_tutorial_rolls_the_bundle_out(tutorial: tuple[Path, str]) -> None:
    for port in FLEET_PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port}, which the tutorial serves at, is taken here")
    folder, _ = tutorial
    activate = f"```sh\n. {shlex.quote(str(folder.parent / 'venv/bin/activate'))}\n```\n"
    printed = run_page(activate + _page("first-fleet"), folder)
    assert re.search(r"cam-7 .*meter 1\.0\.0", printed), printed
    assert _ANSWER.search(printed), printed[-2000:]


def _page(name: str) -> str:
    return (ROOT / "docs" / "tutorial" / f"{name}.md").read_text(encoding="utf-8")
