"""Builds that a board proves over ssh: Debian's sshd on loopback, with keys of its own."""

import csv
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.boards import board_process, ssh_stream
from edgepack.packager.boards.board_process import BoardProcess
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.pipeline.build import build_bundle
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import BuildStep, silent
from edgepack.packager.runtime.deadline import OutOfTimeError
from tests.graphs import graph_model
from tests.simulators.programs import require
from tests.simulators.ssh_board import SSHD, SshBoard
from tests.simulators.waiting import wait_until

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshBoard]:
    """Start a board, and put the ssh that knows the board first on the path."""
    if SSHD is None:
        require("sshd")
    started = SshBoard(tmp_path / "board")
    monkeypatch.setenv("PATH", f"{started.programs}:{os.environ['PATH']}")
    yield started
    started.kill()


def _command(material: Path, output: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "edgepack.cli", "build", str(material / "small.onnx")),
        *("--shape", "images=1,3,8,8", "--calibration", str(material / "samples.npz")),
        *("--key", str(material / "release.key"), "-o", str(output)),
        *more,
    ]


def _request(material: Path, output: Path, *boards: str, **more: Any) -> BuildRequest:
    return BuildRequest(
        model=material / "small.onnx",
        output=output,
        name="small",
        version="1.0.0",
        release=1_000_000,
        key=material / "release.key",
        calibration=str(material / "samples.npz"),
        shapes={"images": (1, 3, 8, 8)},
        outputs={"scores": OutputDeclaration(task="classification")},
        prove=boards,
        **{"profiles": ("fp32",), **more},
    )


def _make_wheel(folder: Path, name: str) -> None:
    """Make a wheel of an installed package."""
    found = importlib.metadata.distribution(name)
    tags = [
        line.removeprefix("Tag: ")
        for line in (found.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag: ")
    ]
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{tags[0]}.whl", "w") as wheel:
        for path, *_ in csv.reader((found.read_text("RECORD") or "").splitlines()):
            file = Path(str(found.locate_file(path)))
            if not path.startswith("..") and file.is_file():
                wheel.write(file, path)


def test_report_of_the_command_has_what_two_boards_measured(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    if not OLDEST.exists() or subprocess.run([OLDEST, "-c", "import onnxruntime"]).returncode:
        pytest.skip("onnxruntime 1.18 has no wheel for this Python")
    _make_wheel(tmp_path / "wheels", "msgspec")
    output = tmp_path / "small-1.0.0.edgepack"
    new, old = board.url(sys.executable), board.url(OLDEST).replace("127.0.0.1", "localhost")
    board.know("localhost")
    boards = ("--prove", new, "--prove", old, "--prove-wheels", str(tmp_path / "wheels"))
    command = _command(material, output, "--profile", "cpu", "--prefer", "size", *boards)
    (tmp_path / "edgepack.toml").write_text('[outputs.scores]\ntask = "classification"\n')
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [f"127.0.0.1:{board.port}", f"localhost:{board.port}"]
    assert all(f"cpu on board {name}: " in done.stdout for name in names)
    report = json.loads(output.with_name(f"{output.name}.report.json").read_text())
    (variant,) = report["variants"]
    rows = variant["boards"]
    assert [row["board"] for row in rows] == names
    assert rows[0]["runtime"] == onnxruntime.__version__
    assert rows[1]["runtime"].startswith("1.18."), "msgspec came as a wheel, onnxruntime was there"
    assert variant["accuracy"]["provider"] == "CPUExecutionProvider"
    assert variant["accuracy"]["value"] in [row["accuracy"] for row in rows]
    assert variant["timing"]["latency_ms"] in [row["latency_ms"] for row in rows]
    assert all("golden samples" in row["golden"] for row in rows)
    assert all(f"Ran on board {name}: " in variant["rehearsal"]["because"] for name in names)
    assert variant["rehearsal"]["latency_ms"] == max(row["probe_ms"] for row in rows)
    page = output.with_name(f"{output.name}.report.html").read_text()
    assert "On which boards" in page
    assert all(name in page for name in names)
    assert f"localhost:{board.port}".encode() not in output.read_bytes(), "hosts stay here"
    assert b"ONNX Runtime 1.18." in output.read_bytes()
    assert (board.left(), board.processes()) == ([], [])


def test_variant_that_cuts_likely_extremes_off_is_weak_on_this_machine_and_on_a_board(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    """Series with lognormal levels: one in many is far above all that the build has seen."""
    rng = np.random.default_rng(2)
    normal = statistics.NormalDist()
    levels = rng.permutation([np.exp(0.9 * normal.inv_cdf((n + 0.5) / 240)) for n in range(240)])
    series = levels[:, None] * rng.uniform(0.2, 1.0, (240, 128))
    np.savez(tmp_path / "series.npz", x=series.astype(np.float32))
    mix = rng.normal(1 / 128, 0.001, (128, 96)).astype(np.float32)
    onnx.save(
        graph_model(
            "(float[1,128] x) => (float[1,96] y) { [product] y = MatMul(x, mix) }",
            [numpy_helper.from_array(mix, "mix")],
        ),
        tmp_path / "series.onnx",
    )
    (tmp_path / "edgepack.toml").write_text('[outputs.y]\ntask = "values"\n')
    wide = '[profile]\nname = "wide"\nextends = "cpu"\n[[pass]]\nname = "quantize"\n'
    (tmp_path / "wide.toml").write_text(f'{wide}activations = "uint16"\n')
    for more in ([], ["--prove", board.url(sys.executable)]):
        output = tmp_path / f"series-1.{len(more)}.0.edgepack"
        command = [sys.executable, "-m", "edgepack.cli", "build", str(tmp_path / "series.onnx")]
        command += ["--calibration", str(tmp_path / "series.npz"), "--profile", "wide.toml"]
        command += ["--key", str(material / "release.key"), "--prefer", "size", "-o", str(output)]
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(output.with_name(f"{output.name}.report.json").read_text())
        (variant,) = report["variants"]
        assert (variant["precision"], len(variant["boards"])) == ("a16w8", len(more) // 2)
        assert variant["accuracy"]["value"] > 0.99
        assert "likely extremes" in variant["accuracy"]["weak"]
        assert "likely extremes" in done.stdout


@pytest.mark.parametrize("step", ["held-out samples on", "rehearsing on"])
def test_sshd_killed_in_mid_build_costs_only_time(
    material: Path, tmp_path: Path, board: SshBoard, step: str
) -> None:
    done: list[str] = []

    def cut(told: BuildStep) -> None:
        if told.what.startswith(step) and not done:
            done.append(told.what)
            board.kill()
            board.start()

    url = board.url(sys.executable)
    result = build_bundle(_request(material, tmp_path / "bundle", url), cut)
    (row,) = result.variants["fp32"].boards
    assert (len(done), row.losses, row.passed) == (1, 1, True)
    assert (board.left(), board.processes()) == ([], [])


def test_board_that_stays_away_ends_the_build_with_what_was_proven_and_what_not(
    material: Path, tmp_path: Path, board: SshBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_process, "RETRY_S", 0.6)
    seen: list[str] = []

    def cut(told: BuildStep) -> None:
        if told.what.startswith("running on") and told.profile not in seen:
            seen.append(told.profile)
            if len(seen) == 2:
                board.kill()

    other = tmp_path / "other.toml"
    other.write_text('[profile]\nname = "other"\nextends = "fp32"\n')
    profiles = {"profiles": ("fp32", str(other))}
    with pytest.raises(BuildError, match=r"was not proven: board 127\.0\.0\.1") as caught:
        build_bundle(
            _request(material, tmp_path / "bundle", board.url(sys.executable), **profiles), cut
        )
    assert "tried again for" in caught.value.problem
    assert caught.value.found_in == "proven but for the rehearsal: fp32; not proven: other"
    assert not (tmp_path / "bundle").exists()
    assert (board.left(), board.processes()) == ([], [])


def test_variant_that_no_time_was_left_to_prove_is_not_reported_as_proven(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    def end_time(told: BuildStep) -> None:
        if told.what.startswith("running on"):
            raise OutOfTimeError

    request = _request(material, tmp_path / "bundle", board.url(sys.executable))
    report = build_bundle(request, end_time).report
    assert report.variants[0].boards == ()
    assert not report.variants[0].placement.verified
    assert any(it.startswith("not proven on a board: fp32. ") for it in report.warnings)


def test_frozen_board_is_noticed_in_seconds(
    material: Path, tmp_path: Path, board: SshBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = ("ServerAliveInterval=1", "ServerAliveCountMax=1")
    monkeypatch.setattr(ssh_stream, "_OPTIONS", (*ssh_stream._OPTIONS[:-2], *alive))
    frozen: list[str] = []

    def freeze(told: BuildStep) -> None:
        if told.what.startswith("running on") and not frozen:
            frozen.append(told.what)
            board.freeze()

    reconnect = BoardProcess._reconnect

    def notice(process: BoardProcess, *words: Any) -> None:
        board.kill()
        board.start()
        reconnect(process, *words)

    monkeypatch.setattr(BoardProcess, "_reconnect", notice)
    request = _request(material, tmp_path / "bundle", board.url(sys.executable))
    (row,) = build_bundle(request, freeze).variants["fp32"].boards
    assert row.losses == 1


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        (SshBoard.forget, "the host key of board .* is not known", "ssh-keyscan -p"),
        (SshBoard.know_another_key, "shows another host key than the known key", "ssh-keygen -R"),
        (SshBoard.lock_out, "does not let the build log in", "ssh-copy-id"),
        (SshBoard.kill, "cannot be reached: .*refused", "ssh -p|-p"),
    ],
)
def test_board_that_cannot_be_used_is_an_error_before_anything_is_built(
    material: Path,
    tmp_path: Path,
    board: SshBoard,
    change: Callable[[SshBoard], None],
    problem: str,
    remedy: str,
) -> None:
    change(board)
    with pytest.raises(EdgepackError, match=problem) as caught:
        _build(material, tmp_path / "bundle", board.url(sys.executable))
    assert remedy.split("|")[-1] in (caught.value.remedy or "")
    assert list(tmp_path.glob("bundle*")) == []


def _build(material: Path, output: Path, *boards: str) -> BuildResult:
    return build_bundle(_request(material, output, *boards), silent)


def test_board_without_packages_or_python_names_what_is_missing(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(EdgepackError, match="lacks msgspec, numpy, onnxruntime") as caught:
        _build(material, tmp_path / "bundle", board.url(bare / "bin/python"))
    assert "pip install msgspec numpy onnxruntime" in (caught.value.remedy or "")
    assert "--prove-wheels" in (caught.value.remedy or "")
    with pytest.raises(EdgepackError, match="/no/python does not run on board"):
        _build(material, tmp_path / "bundle", board.url("/no/python"))
    assert (board.left(), board.processes()) == ([], [])


def test_board_that_fits_no_profile_is_an_error_that_says_why(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    request = _request(
        material, tmp_path / "bundle", board.url(sys.executable), profiles=("qnn-htp",)
    )
    with pytest.raises(BuildError, match="fits none of the profiles") as caught:
        build_bundle(request, silent)
    assert "QNNExecutionProvider" in (caught.value.found_in or "")


def test_client_that_is_killed_leaves_no_process_and_no_folder(
    material: Path, tmp_path: Path, board: SshBoard
) -> None:
    url = board.url(sys.executable)
    command = _command(material, tmp_path / "small-1.0.0", "--profile", "cpu", "--prove", url)
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: client.poll() is not None or len(board.processes()) >= 2)
    assert client.poll() is None
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_until(lambda: not board.processes(), "no process stays")
    wait_until(lambda: not board.left(), "no folder stays")
