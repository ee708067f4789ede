"""A build that is stopped, or with a full disk, leaves the previous files and nothing else."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from edgepack.agent.runtime.opening import ON_CPU
from edgepack.bundle.golden import write_golden
from edgepack.cli import cli
from edgepack.errors import BuildError
from edgepack.packager.pipeline.build import build_bundle
from edgepack.packager.pipeline.request import derive_request
from edgepack.packager.progress import BuildStep
from edgepack.packager.reports.reasons import sum_up
from edgepack.packager.runtime.trial import try_model
from edgepack.packager.search.journal import journal_folder
from edgepack.packager.tensors.sequence import Samples
from tests.graphs import graph_model
from tests.simulators import warm_programs
from tests.unit.packager_io.models import save

COMMAND = (sys.executable, "-m", "edgepack.cli")


@pytest.fixture(scope="module")
def yesterday(material: Path) -> Path:
    """Return a bundle built before."""
    output = material / "yesterday-1.0.0.edgepack"
    warm_programs.run(
        (*COMMAND, *_words(material, output, "fp32")), check=True, capture_output=True
    )
    return output


def _declared(folder: Path) -> Path:
    """Return a file that declares the model's output, so that no search is needed."""
    path = folder / "small.toml"
    path.write_text('[outputs.scores]\ntask = "classification"\n')
    return path


def _words(material: Path, output: Path, profile: str, *more: str) -> tuple[str, ...]:
    return (
        *("build", str(material / "small.onnx"), "--profile", profile),
        *("--calibration", str(material / "samples.npz")),
        *("--config", str(_declared(material))),
        *("--key", str(material / "release.key"), "-o", str(output), *more),
    )


@pytest.mark.parametrize("phase", ["variants/cpu/passes", "variants/cpu/calibration", "bundle"])
def test_ctrl_c_in_any_phase_exits_130_and_leaves_the_old_bundle(
    material: Path, yesterday: Path, tmp_path: Path, phase: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "small-1.0.0.edgepack"
    shutil.copy(yesterday, output)
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit it.
    words = (
        "env",
        "--default-signal=INT",
        *COMMAND,
        *_words(material, output, "cpu", "--force"),
    )
    with warm_programs.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 400
            while not list(folder.glob(f".small*/{phase}")):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=400)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"stopped by SIGINT" in errors
    assert b"Traceback" not in errors
    assert [path.name for path in folder.iterdir()] == [output.name]
    assert output.read_bytes() == yesterday.read_bytes()


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restore the handlers that a command sets in this process."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def _is_stopped_in_a_zip_file(*_: object) -> None:
    file = zipfile.ZipFile(io.BytesIO(), "w")
    half = file.open("half", "w")
    try:
        with file:
            signal.raise_signal(signal.SIGINT)  # The end of the block raises ValueError instead.
    finally:
        half.close()  # Otherwise finalizers raise it once more, within a later test.
        file.close()


class _Finalized:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def _is_stopped_in_a_finalizer(*given: Any) -> None:
    _Finalized()
    write_golden(*given)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("place", [_is_stopped_in_a_zip_file, _is_stopped_in_a_finalizer])
@pytest.mark.usefixtures("signal_handlers")
def test_ctrl_c_exits_130_where_python_replaces_or_drops_the_exception(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[..., None]
) -> None:
    monkeypatch.setattr("edgepack.packager.bundling.assemble.write_golden", place)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = tmp_path / "small-1.0.0.edgepack"
    done = CliRunner().invoke(cli, _words(material, output, "fp32"))
    assert (done.exit_code, "stopped by SIGINT" in done.stderr) == (130, True), done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.usefixtures("signal_handlers")
def test_a_stopped_build_says_where_what_it_measured_is(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_measured: bool
) -> None:
    output = tmp_path / "small-1.0.0.edgepack"
    if is_measured:
        journal_folder(output).mkdir()
    monkeypatch.setattr(
        "edgepack.packager.cli.build.build_any", lambda *_: signal.raise_signal(signal.SIGTERM)
    )
    stopped = CliRunner().invoke(cli, _words(material, output, "fp32"))
    assert stopped.exit_code == 143
    kept = f"what was measured is in {journal_folder(output)}: the same command goes on there"
    assert (kept in stopped.stderr) is is_measured


def test_a_disk_that_fills_up_anywhere_leaves_the_old_bundle(
    material: Path, yesterday: Path, tmp_path: Path
) -> None:
    """A file size limit stands in for the full disk: the write beyond the limit fails."""
    whole_kib = yesterday.stat().st_size // 1024
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "small-1.0.0.edgepack"
    for limit_kib in (4, whole_kib // 2, whole_kib - 1):
        shutil.copy(yesterday, output)
        limited = ("bash", "-c", f'ulimit -f {limit_kib}; trap "" XFSZ; exec "$@"', "--")
        done = warm_programs.run(
            (*limited, *COMMAND, *_words(material, output, "fp32", "--force")),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, f"{limit_kib} KiB: {done.stdout}"
        assert "\nerror: " in f"\n{done.stderr}", done.stderr
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert [path.name for path in folder.iterdir()] == [output.name], f"{limit_kib} KiB"
        assert output.read_bytes() == yesterday.read_bytes()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("    raise ZeroDivisionError('no samples')", "raised ZeroDivisionError: no samples"),
        ("    return None", "returned None, which is not a finite number"),
        ("    return float('nan')", "returned nan, which is not a finite number"),
    ],
)
def test_a_metric_that_fails_ends_the_build_with_its_name(
    material: Path, tmp_path: Path, body: str, problem: str
) -> None:
    (tmp_path / "mine.py").write_text(f"def score(run):\n{body}\n")
    output = tmp_path / "out" / "small-1.0.0.edgepack"
    output.parent.mkdir()
    done = warm_programs.run(
        (*COMMAND, *_words(material, output, "fp32", "--metric", "mine:score")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ},
        check=False,
    )
    assert done.returncode == 1
    assert f"the metric mine:score {problem}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()


@pytest.mark.parametrize("ends_in", ["cpu", "openvino-cpu"])
def test_a_build_that_runs_out_of_time_publishes_the_finished_profiles(
    material: Path, tmp_path: Path, ends_in: str
) -> None:
    """The clock of the build jumps to the end of its budget during the preparation of a later
    profile.
    """
    names, now_s = ["fp32", "cpu", "openvino-cpu"], [0.0]

    def jump(step: BuildStep) -> None:
        if step.profile == ends_in and not step.what.startswith("rehears"):
            now_s[0] = 3600.0

    request = derive_request(
        material / "small.onnx",
        {
            "profiles": names,
            "calibration": material / "samples.npz",
            "shapes": {"images": (1, 3, 8, 8)},
            "key": material / "release.key",
            "output": tmp_path / "small-1.0.0.edgepack",
            "budget": 3600.0,
        },
    )
    result = build_bundle(request, jump, lambda: now_s[0])
    finished = names[: names.index(ends_in)]
    assert list(result.variants) == finished
    left = names[len(finished) :]
    assert [entry.profile for entry in result.refused] == left
    assert all(entry.is_unfinished for entry in result.refused)
    first = result.report.warnings[0]
    assert all(name in first for name in left)
    assert "--budget" in first
    assert "--force" in first
    assert f"{len(left)} profile" in sum_up(result.report)
    assert result.output.is_file()


def _endless() -> onnx.ModelProto:
    """Return a model that counts for hours."""
    return graph_model(
        "(float[1] x) => (float[1] y) { "
        "[loop] y = Loop<body = body (int64 i, bool go, float[1] state) => (bool on, float[1] "
        'next) { [on] on = Identity(go) [step] next = Sin(state) }>(n, "", x) }',
        {"n": np.array(1 << 50)},
    )


def test_a_provider_that_hangs_is_ended_at_the_limit(tmp_path: Path) -> None:
    samples = Samples(count=1, read=lambda _: {"x": np.zeros(1, np.float32)}, source="test")
    with pytest.raises(BuildError) as caught:
        try_model(
            save(_endless(), tmp_path / "model.onnx"),
            samples,
            ON_CPU,
            timeout_s=6.0,
        )
    assert caught.value.problem == (
        "the model does not survive CPUExecutionProvider: no answer within 6 s"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"], "its files are gone"
