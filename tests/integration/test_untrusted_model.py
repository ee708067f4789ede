"""A model, an `edgepack.toml` and a profile from a stranger configure a build and run no code."""

import os
import pty
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from tests.simulators import warm_programs
from tests.unit.packager_io.models import save, small_cnn, write_stack

_CODE = "/bin/sh -c 'touch ran'"
_HOSTILE_NAMES = (
    "x\n[build]\ntoolchain.fp32 = './run'",
    "x]\n[build.toolchain]\nfp32 = './run'\n[inputs.x",
    "x'\n[build]\nmetric = 'evil:score'",
    'x"\n[build]\nmetric = "evil:score"',
    'x"]\n[build]\nplain_runtimes = ["./run"]\n[inputs."y',
    "x\r\n[build]\r\nmetric = 'evil:score'",
    "x\r[build]\rmetric = 'evil:score'",
    "x\x85[build]\x85metric = 'evil:score'",
    "x\u2028[build]\u2028metric = 'evil:score'",
    "x\u2029[build]\u2029metric = 'evil:score'",
    "x\x0b[build]\x0bmetric = 'evil:score'",
    "x\x0c[build]\x0cmetric = 'evil:score'",
    "x\\\n[build]\nmetric = 'evil:score'",
    "\\u000a[build]\\u000ametric = 'evil:score'",
    '"""\n[build]\nmetric = "evil:score"\n"""',
    "'''\n[build]\nmetric = 'evil:score'\n'''",
    "# x\n[build]\nmetric = 'evil:score'",
    "{{ ''.__class__ }}",
    "{% set x = 1 %}",
    "${IFS}touch${IFS}ran",
    f"x; {_CODE}",
    f"$({_CODE})",
    f"`{_CODE}`",
    "x | touch ran",
    "../../ran",
    "-o ran",
    "\x1b]0;title\x07\x1b[31mred",
    "<script>alert(1)</script>",
    "a.b.c = [build]",
    "x\x7f\x01\x02\n[build]\nmetric = 'evil:score'",
    "\u202ename\u202c",
    " = ",
)


def _edgepack(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        [str(Path(sys.executable).parent / "edgepack"), *arguments],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "EDGEPACK_KEY": "release.key"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a model, samples, a key, and code that leaves a file `ran` after a run."""
    save(small_cnn(), tmp_path / "small.onnx")
    write_stack(tmp_path / "samples.npz", 40)
    write_key_pair(generate_key(), tmp_path / "release")
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(
        f"open({str(marker)!r}, 'w').close()\ndef score(run):\n    return 1.0\n"
    )
    (tmp_path / "run").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (tmp_path / "run").chmod(0o755)
    return tmp_path


def _renamed(name: str, path: Path) -> None:
    """Write a model with hostile names of its input, its first axis, and a node."""
    model = small_cnn(batch="batch")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = f"{name}\nbatch"
    model.graph.input[0].name = name
    for node in model.graph.node:
        node.input[:] = [name if each == "images" else each for each in node.input]
    model.graph.node[0].name = name
    onnx.save(model, str(path))


@pytest.mark.parametrize("name", _HOSTILE_NAMES)
def test_no_name_in_a_model_adds_a_setting_or_runs_code(name: str, folder: Path) -> None:
    _renamed(name, folder / "small.onnx")
    written = _edgepack(folder, "init", "small.onnx")
    assert written.returncode == 0, written.stderr
    settings = tomllib.loads((folder / "edgepack.toml").read_text(encoding="utf-8"))
    assert settings["build"] == {"profiles": ["cpu"]}
    assert list(settings["inputs"]) == [name]
    assert set(settings) == {"model", "inputs", "calibration", "build"}
    built = _edgepack(
        folder, "build", "small.onnx", "--profile", "fp32", "--version", "1.0.0", "--force"
    )
    for output in (written.stdout, written.stderr, built.stdout, built.stderr):
        assert all(letter.isprintable() or letter == "\n" for letter in output), repr(output)
    page = folder / "small-1.0.0.edgepack.report.html"
    assert "<script>alert" not in (page.read_text() if page.is_file() else "")
    assert "Traceback" not in built.stderr
    assert not (folder / "ran").exists()


def test_the_command_that_init_proposes_runs_for_a_file_named_like_an_option(folder: Path) -> None:
    shutil.copy(folder / "small.onnx", folder / "-o.onnx")
    written = _edgepack(folder, "init", "./-o.onnx", "-o", "./-c.toml")
    assert written.returncode == 0, written.stderr
    proposed = shlex.split(written.stdout.splitlines()[-1])
    assert proposed[:2] == ["edgepack", "build"]
    output = ("--profile", "fp32", "-o", "odd-1.0.0.edgepack", "--name", "odd")
    built = _edgepack(folder, *proposed[1:], "--calibration", "samples.npz", *output)
    assert built.returncode == 0, built.stderr
    assert (folder / "odd-1.0.0.edgepack").is_file()


def test_no_name_of_a_file_adds_a_setting(folder: Path) -> None:
    hostile = "a\n[build]\nmetric = 'evil:score'\n#.onnx"
    shutil.copy(folder / "small.onnx", folder / hostile)
    written = _edgepack(folder, "init", hostile)
    assert written.returncode == 0, written.stderr
    settings = tomllib.loads((folder / "edgepack.toml").read_text(encoding="utf-8"))
    assert settings["build"] == {"profiles": ["cpu"]}


@pytest.mark.parametrize("words", [(b"a\xff.onnx",), (b"small.onnx", b"-o", b"a\xff.edgepack")])
def test_a_path_that_is_not_utf_8_is_rejected_with_a_remedy(
    words: tuple[bytes, ...], folder: Path
) -> None:
    shutil.copy(folder / "small.onnx", folder / os.fsdecode(b"a\xff.onnx"))
    rejected = _edgepack(folder, "build", *map(os.fsdecode, words))
    assert rejected.returncode == 1
    assert "not UTF-8" in rejected.stderr
    assert "try: rename" in rejected.stderr
    assert "Traceback" not in rejected.stderr


_METRIC = '[build]\nmetric = "evil:score"\n'
_TOOLCHAIN = '[build]\ntoolchain = { fp32 = "./run" }\n'
_PLAIN_RUNTIME = '[build]\nplain_runtimes = ["./run"]\n'
_HOOKS = '[build]\nhooks = "hooks"\n'
_SEARCHED_LIBRARY = '[search]\nprovider.options.backend_path = ["./evil.so"]\n'


@pytest.mark.parametrize(
    ("config", "named", "profile"),
    [
        (_METRIC, "[build] metric = evil:score", "fp32"),
        (_TOOLCHAIN, "[build] toolchain.fp32 = ", "fp32"),
        (_PLAIN_RUNTIME, "[build] plain_runtimes = ", "fp32"),
        (_HOOKS, "[build] hooks = ", "fp32"),
        (_SEARCHED_LIBRARY, "[search] provider.options.backend_path = ./evil.so", "qnn-htp"),
    ],
)
def test_code_that_a_config_names_does_not_run_without_trust(
    config: str, named: str, profile: str, folder: Path
) -> None:
    (folder / "edgepack.toml").write_text(config)
    samples = ("--calibration", "samples.npz", "--shape", "images=1,3,8,8")
    refused = _edgepack(
        folder, "build", "small.onnx", "--profile", profile, "--version", "1.0.0", *samples
    )
    assert refused.returncode == 1
    assert f"{folder / 'edgepack.toml'}, {named}" in refused.stderr
    assert "--trust-config" in refused.stderr
    assert not (folder / "ran").exists()
    assert not (folder / "small-1.0.0.edgepack").exists()


def test_a_library_that_a_profile_names_is_not_loaded_without_trust(folder: Path) -> None:
    (folder / "mine.toml").write_text(
        '[profile]\nname = "mine"\nextends = "qnn-htp"\n'
        '[provider.options]\nbackend_path = "./evil.so"\n'
    )
    refused = _edgepack(
        folder, "build", "small.onnx", "--profile", "mine.toml", "--version", "1.0.0",
        "--calibration", "samples.npz", "--shape", "images=1,3,8,8",
    )  # fmt: skip
    assert refused.returncode == 1
    assert f"{folder / 'mine.toml'}, [provider.options] backend_path = ./evil.so" in refused.stderr


@pytest.mark.parametrize(
    ("extends", "section", "option"),
    [
        ("qnn-htp", "provider.options", "profiling_file_path"),
        ("qnn-htp", "provider.options", "dump_qnn_ir_dlc_dir"),
        ("fp32", "provider.session", "ep.context_file_path"),
        ("fp32", "provider.session", "session.collect_node_memory_stats_to_file"),
    ],
)
def test_no_provider_reads_or_writes_a_file_that_a_profile_names_without_trust(
    extends: str, section: str, option: str, folder: Path
) -> None:
    (folder / "mine.toml").write_text(
        f'[profile]\nname = "mine"\nextends = "{extends}"\n[{section}]\n"{option}" = "written"\n'
    )
    command = (
        "build", "small.onnx", "--profile", "mine.toml", "--version", "1.0.0",
        "--calibration", "samples.npz", "--shape", "images=1,3,8,8",
    )  # fmt: skip
    refused = _edgepack(folder, *command)
    assert refused.returncode == 1
    assert f"{folder / 'mine.toml'}, [{section}] " in refused.stderr
    assert f"{option}" in refused.stderr
    assert "--trust-config" in refused.stderr
    assert not (folder / "written").exists()


def test_trust_config_lets_a_metric_run(folder: Path) -> None:
    (folder / "edgepack.toml").write_text(_METRIC)
    built = _edgepack(
        folder, "build", "small.onnx", "--profile", "fp32", "--version", "1.0.0", "--trust-config"
    )
    assert built.returncode == 0, built.stderr
    assert (folder / "ran").exists()


def test_a_metric_on_the_command_line_needs_no_trust(folder: Path) -> None:
    (folder / "edgepack.toml").write_text('[build]\nmetric = "other:score"\n')
    built = _edgepack(
        folder, "build", "small.onnx", "--profile", "fp32", "--version", "1.0.0",
        "--metric", "evil:score",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr


def test_a_person_confirms_code_once_at_the_terminal(folder: Path) -> None:
    (folder / "edgepack.toml").write_text(_METRIC)
    command = [str(Path(sys.executable).parent / "edgepack"), "build", "small.onnx", "--force"]
    command += ["--profile", "fp32", "--version", "1.0.0", "--key", "release.key"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "TERM": "dumb"}

    def build(answer: bytes | None, where: Path = folder) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        named = () if where == folder else ("--config", str(folder / "edgepack.toml"))
        child = warm_programs.Popen(
            (*command, *named),
            cwd=where,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen = b""
        while True:
            try:
                read = os.read(ours, 4096)
            except OSError:  # the child closed the terminal
                break
            if not read:
                break
            seen += read
            if answer is not None and b"[y/N]" in seen:
                os.write(ours, answer)
                answer = None
        os.close(ours)
        return child.wait(timeout=400), seen

    refused, seen = build(b"n\n")
    assert (refused, (folder / "ran").exists()) == (1, False), seen
    assert b"[build] metric = evil:score" in seen
    accepted, seen = build(b"y\n")
    assert (accepted, (folder / "ran").exists()) == (0, True), seen
    again, seen = build(None)
    assert (again, b"[y/N]" in seen) == (0, False), seen
    elsewhere = folder / "elsewhere"  # there the same file means another module
    elsewhere.mkdir()
    for name in ("small.onnx", "release.key", "evil.py"):
        shutil.copy(folder / name, elsewhere)
    (folder / "ran").unlink()
    asked, seen = build(b"n\n", elsewhere)
    assert (asked, (folder / "ran").exists()) == (1, False), seen
    assert f"metric = evil:score (in {elsewhere})".encode() in seen.replace(b"\r\n", b"")
    (folder / "edgepack.toml").write_text('[build]\nmetric = "evil:other"\n')
    asked, seen = build(b"n\n")
    assert asked == 1, seen
