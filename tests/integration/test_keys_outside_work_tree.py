"""Keys, tokens and databases stay out of a git work tree, where a commit would publish secrets."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulators.ports import free_port

ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_BIN / command[0]), *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    """Make a git work tree with this repository's `.gitignore`."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("edgepack", "keys", "generate", "-o", "release"),
        ("edgepack", "fleet", "serve", "--data", "fleet"),
        ("edgepack", "fleet", "init", "--data", "fleet"),
        ("edgepack", "fleet", "broker-config", "--host", "a.example", "-o", "broker"),
        ("edgepack", "fleet", "enroll", "cam-7", "--group", "g", "-o", "cam-7"),
        ("edgepack", "fleet", "enroll", "cam-7", "--group", "g"),
        ("edgepack-agent", "enroll", "cam-7.enrol", "--folder", "device"),
    ],
    ids=lambda command: " ".join(command[:4]),
)
def test_no_command_writes_keys_into_a_git_work_tree(
    command: tuple[str, ...], work_tree: Path
) -> None:
    folder = work_tree / "below"
    folder.mkdir()
    refused = _run(folder, *command)
    assert refused.returncode == 1
    assert f"into the git work tree {work_tree}" in refused.stderr
    assert "--force" in refused.stderr
    assert list(folder.iterdir()) == []


@contextmanager
def _serving(folder: Path, url: str) -> Iterator[None]:
    port = url.rpartition(":")[2]
    words = ["fleet", "serve", "--data", "fleet", "--port", port, "--force"]
    words += ["--broker-port", str(free_port()), "--trust", "release.pub"]
    process = subprocess.Popen(
        [str(_BIN / "edgepack"), *words], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("broker:"):
                break
        yield
    finally:
        process.terminate()
        process.communicate(timeout=400)


def test_git_ignores_every_secret_that_force_wrote(work_tree: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    made = _run(work_tree, "edgepack", "keys", "generate", "-o", "release", "--force")
    assert made.returncode == 0, made.stderr
    with _serving(work_tree, url):
        for words in (("-o", "cam-7"), ()):
            enrolled = _run(
                work_tree, "edgepack", "fleet", "enroll", f"cam-{len(words)}", "--group", "g",
                *words, "--url", url, "--data", "fleet", "--force",
            )  # fmt: skip
            assert enrolled.returncode == 0, enrolled.stderr
        token = (work_tree / "fleet" / "token").read_text().strip()
        shown = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=all"],
            cwd=work_tree,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    seen = {line[3:] for line in shown.splitlines()}
    assert ".gitignore" in seen
    for name in seen:
        content = (work_tree / name).read_bytes()
        assert b"PRIVATE KEY" not in content, name
        assert token.encode() not in content, name
        assert not name.endswith((".db", ".db-wal", ".db-shm", ".enrol")), name


def test_a_work_tree_elsewhere_does_not_matter(tmp_path: Path) -> None:
    assert not any((folder / ".git").exists() for folder in (tmp_path, *tmp_path.parents))
    made = _run(tmp_path, "edgepack", "keys", "generate", "-o", "release")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "release.key").stat().st_mode & 0o777 == 0o600
