"""The demo: its place in the README, and two demos on the same machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "examples.demo"]


def test_a_second_demo_leaves_the_first_ones_files_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    first = subprocess.Popen(
        DEMO, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("edgepack demo")
        mark = tmp_path / "edgepack" / "demo" / "mark"
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
        second = subprocess.run(DEMO, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert second.returncode == 1
        assert "another demo is running" in second.stderr
        assert "XDG_CACHE_HOME" in second.stderr
        assert mark.exists()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def test_help_of_the_demo_touches_no_file(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    shown = subprocess.run(
        [*DEMO, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert shown.returncode == 0
    assert "--keep" in shown.stdout
    assert not list(tmp_path.iterdir())


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:24]
    for target in ("demo", "test"):
        assert any(line.startswith(f"$ make {target} ") for line in first_screen)
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()
