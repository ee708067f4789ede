"""What a board sends is hostile until checked: bounded, decoded into types, and plausible."""

import io
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.opening import ON_CPU
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.packager.boards import link as links
from edgepack.packager.boards.address import parse_address
from edgepack.packager.boards.board_process import BoardProcess
from edgepack.packager.boards.keeper import HELLO
from edgepack.packager.boards.link import Link
from edgepack.packager.boards.ssh_stream import LinkLostError, explain_ssh
from edgepack.packager.pipeline.provider_validation import check_alike
from edgepack.packager.runtime.board import Board, BoardError
from edgepack.packager.runtime.race_child import RaceRequest
from edgepack.packager.runtime.trial import FEEDS, OUTPUTS, Asked, TrialRequest
from tests.unit.packager_passes.models import spread_model

ADDRESS = parse_address("ssh://pi@board")
RIGHT = {"provider": "CPUExecutionProvider", "taken": 1, "total": 1, "left": {}, "verified": True}
GREETING = HELLO + '{"folder": "/tmp/x", "python": [3, 11], "machine": "m", "libc": "glibc"}\n'


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("while True: print('x' * 65536, end='')", "a reply without an end"),
        ("while True: print('welcome')", "no greeting"),
        (f"print({HELLO!r} + '[]')", "a greeting that cannot be read"),
        (f"print({GREETING!r} * 2)", "a reply that cannot be read"),
        (f'print({GREETING!r} + \'{{"size": "1"}}\')', "a reply that cannot be read"),
    ],
)
def test_ssh_that_prints_anything_is_an_error_of_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    _install_ssh(tmp_path, monkeypatch, program)
    link = Link(ADDRESS, None, "token")
    with pytest.raises(BoardError, match=problem):
        link.open()
    assert not link.is_open


def test_flood_of_words_beside_no_answer_is_a_lost_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_SHORT_S", 0.5)
    program = "import sys\nwhile True: sys.stderr.write('x' * 65536)"
    _install_ssh(tmp_path, monkeypatch, program)
    with pytest.raises(LinkLostError, match="no greeting within"):
        Link(ADDRESS, None, "token").open()


def test_host_without_ssh_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BoardError, match="ssh cannot be started: No such file") as caught:
        Link(ADDRESS, None, "token").open()
    assert "openssh-client" in (caught.value.remedy or "")


def _install_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Put a program in the place of ssh."""
    ssh = folder / "ssh"
    ssh.write_text(
        f"#!{sys.executable}\n{program}\nimport sys; sys.stdout.flush(); sys.stdin.read()\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


class HostileLink(Link):
    """A connection whose board answers what a test says."""

    def __init__(self, answer: Any, outputs: bytes = b"") -> None:
        super().__init__(ADDRESS, None, "token")
        self._answer, self._outputs = answer, outputs

    def open(self) -> None:
        """Connect to nothing."""

    def put(self, path: str, source: Path) -> None:
        """Take a file."""

    def remove(self, path: str) -> None:
        """Remove nothing."""

    def start(self, module: str) -> None:
        """Start nothing."""

    def ask(self, request: bytes, **_: Any) -> tuple[bytes | None, str]:
        """Return the answer."""
        is_raw = isinstance(self._answer, bytes)
        return self._answer if is_raw else msgspec.json.encode(self._answer), ""

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return the outputs."""
        return self._outputs


def _arrays(**arrays: Any) -> bytes:
    return encode_arrays({name.replace("_", "/"): value for name, value in arrays.items()})


def _pickled() -> bytes:
    content = io.BytesIO()
    np.savez(content, **{"0/y": np.array([object()])})  # type: ignore[arg-type]
    return content.getvalue()


def _compressed() -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **{"0/y": np.zeros(100_000)})  # type: ignore[arg-type]
    return content.getvalue()


Y = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("answer", "outputs", "problem"),
    [
        (b"\xff", b"", "an answer that cannot be read"),
        (b"[" * 100_000, b"", "an answer that cannot be read"),
        ({"placement": {**RIGHT, "taken": 2}}, b"", "a placement that cannot be"),
        ({"placement": {**RIGHT, "taken": -1}}, b"", "an answer that cannot be read"),
        ({"placement": {**RIGHT, "provider": "Other"}}, b"", "a placement that cannot be"),
        ({"placement": RIGHT, "ran": 1}, b"no zip", "outputs that cannot be read"),
        ({"placement": RIGHT, "ran": 1}, _pickled(), "outputs that cannot be read"),
        ({"placement": RIGHT, "ran": 1}, _compressed(), "outputs that cannot be read"),
        ({"placement": RIGHT, "ran": 1}, _arrays(**{"-1_y": Y}), "outputs that cannot be read"),
        ({"placement": RIGHT, "ran": 1}, _arrays(**{"1_y": Y}), "outputs that cannot be read"),
        ({"placement": RIGHT, "ran": 0}, _arrays(), "outputs of other samples"),
        ({"placement": RIGHT, "ran": -5}, _arrays(), "outputs of other samples"),
        ({"placement": RIGHT, "ran": 10**9}, _arrays(**{"0_y": Y}), "outputs of other samples"),
        ({"placement": RIGHT, "ran": 2}, _arrays(**{"0_y": Y}), "outputs of other samples"),
    ],
)
def test_answer_to_trial_that_cannot_be_is_an_error_of_the_board(
    tmp_path: Path, answer: Any, outputs: bytes, problem: str
) -> None:
    onnx.save(spread_model(3.0), tmp_path / "model.onnx")
    (tmp_path / FEEDS).touch()
    request = TrialRequest(
        model=str(tmp_path / "model.onnx"),
        exchange=str(tmp_path),
        sample_count=2,
        least=2,
        settings=ON_CPU,
        timeout_s=9.0,
    )
    process = BoardProcess(HostileLink(answer, outputs))
    with pytest.raises(BoardError, match=f"^board board sent ({problem})"):
        process.ask(msgspec.json.encode(Asked(trial=request)), timeout_s=9.0)
    assert not (tmp_path / OUTPUTS).exists()


@pytest.mark.parametrize("times_s", [(), ((1.0,),), ((1.0,), ()), ((), ()), ((1.0,), (-1.0,))])
def test_times_that_cannot_be_are_an_error_of_the_board(
    tmp_path: Path, times_s: tuple[tuple[float, ...], ...]
) -> None:
    onnx.save(spread_model(3.0), tmp_path / "model.onnx")
    model = str(tmp_path / "model.onnx")
    request = RaceRequest(
        models=(model, model), feeds=model, feed_count=1, settings=ON_CPU, rounds=7, timeout_s=9.0
    )
    process = BoardProcess(HostileLink({"times_s": times_s}))
    with pytest.raises(BoardError, match="times that cannot be"):
        process.ask(msgspec.json.encode(Asked(race=request)), timeout_s=9.0)


@pytest.mark.parametrize(
    "got",
    [
        {},
        {"y": np.zeros((1, 3), np.float32), "z": Y},
        {"y": np.zeros(3, np.float32)},
        {"y": np.zeros((1, 3), np.int64)},
    ],
)
def test_outputs_that_are_not_the_models_are_an_error_of_the_board(got: Any) -> None:
    board = Board(name="board", facts=None, process=None)  # type: ignore[arg-type]
    check_alike(board, {"y": np.zeros((1, 3), np.float32)}, {"y": np.ones((1, 9), np.float32)})
    with pytest.raises(BoardError, match=r"^board board sent outputs"):
        check_alike(board, {"y": np.zeros((1, 3), np.float32)}, got)


@pytest.mark.parametrize(
    ("code", "words", "problem", "remedy"),
    [
        (255, "Host key verification failed.", "host key of board board is not", "ssh-keyscan"),
        (
            255,
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "shows another host key",
            "ssh-keygen -R board",
        ),
        (255, "pi@board: Permission denied (publickey).", "does not let the build", "ssh-copy-id"),
        (127, "sh: 1: python3: not found", "python3 does not run", "Python 3.11"),
        (1, "edgepack needs Python 3.11 or newer, and this is 3.9", "this is 3.9", "3.11"),
    ],
)
def test_words_of_ssh_that_no_wait_would_change_are_explained(
    code: int, words: str, problem: str, remedy: str
) -> None:
    error = explain_ssh(ADDRESS, code, words, is_greeted=False)
    assert error is not None
    assert problem in error.problem
    assert remedy in (error.remedy or "")


def test_connection_that_a_wait_may_bring_back_is_no_explained_end() -> None:
    assert explain_ssh(ADDRESS, 255, "ssh: connect: Connection refused", False) is None
    assert explain_ssh(ADDRESS, None, "", False) is None
    assert explain_ssh(ADDRESS, 1, "", True) is None
