"""A model with a state, from the command to the application: built, installed, run as a chain."""

import html
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.agent import open_model
from tests.graphs import graph_model
from tests.simulators import warm_programs
from tests.simulators.device import Device

FEATURES, UNITS, SAMPLES, STEPS = 24, 48, 160, 60


def _filter(after: str = "stateN") -> onnx.ModelProto:
    """Return a recurrent net that follows three hidden levels of a noisy signal."""
    rng = np.random.default_rng(7)
    model = graph_model(
        f"(float[1,{FEATURES}] frame, float[1,{UNITS}] state)"
        f" => (float[1,3] levels, float[1,{UNITS}] {after}) {{"
        "a = MatMul(frame, w) b = MatMul(state, u) sum = Add(a, b)"
        f"{after} = Tanh(sum) levels = MatMul({after}, v) }}"
    )
    shapes = {"w": (FEATURES, UNITS), "u": (UNITS, UNITS), "v": (UNITS, 3)}
    for name, (rows, columns) in shapes.items():
        spread = {"w": 0.4, "u": 0.8, "v": 1.0}[name] / np.sqrt(rows)
        weights = rng.normal(0, spread, (rows, columns)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


def _signal(count: int, seed: int) -> np.ndarray:
    """Return frames in the order of time: a random walk of each feature."""
    steps = np.random.default_rng(seed).normal(0, 0.2, (count, 1, FEATURES))
    return np.clip(np.cumsum(steps, 0), -2, 2).astype(np.float32)


def _run(program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = warm_programs.run(
        [sys.executable, "-m", program, *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("declares", [False, True], ids=["found", "declared"])
def test_a_model_with_a_state_is_built_installed_and_run_as_a_chain(
    tmp_path: Path, key: Path, declares: bool
) -> None:
    model, samples, bundle = tmp_path / "model.onnx", tmp_path / "samples.npz", tmp_path / "built"
    onnx.save(_filter(), model)
    frames = _signal(SAMPLES, 1)
    np.savez(samples, frame=frames, state=np.zeros((SAMPLES, 1, UNITS), np.float32))
    settings = tmp_path / "edgepack.toml"
    settings.write_text(
        '[inputs.state]\nkind = "raw"\nfrom = "stateN"\nsteps = 20\n\n'
        '[outputs.levels]\ntask = "values"\n' * declares
    )
    words = ("--profile", "cpu", "--calibration", samples, "--config", settings, "--key", key)
    done = _run("edgepack.cli", "build", model, *words, "--version", "1.0.0", "-o", bundle)
    assert "traceback" not in (done.stdout + done.stderr).lower()
    report = html.unescape((bundle / "report.html").read_text())
    assert "'state' is fed from output 'stateN'" in report
    assert ("chains of 20 inferences" if declares else "chains of 8 inferences") in report
    assert ("In longer use errors may grow" in report) == (not declares)

    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", key.with_suffix(".pub"))
    config = ("--config", device.config, "--soak", "0", "--json")
    status = json.loads(_run("edgepack.agent.cli", "install", bundle, *config).stdout)
    (name,) = status["models"]

    float_session = onnxruntime.InferenceSession(model.read_bytes())
    expected, got = [], []
    states: list[np.ndarray] = [np.zeros((1, UNITS), np.float32)] * 2
    with open_model(name, device.state_dir, threads=1) as opened, opened.session() as session:
        for frame in _signal(STEPS, 2):
            wanted = float_session.run(None, {"frame": frame, "state": states[0]})
            told = session.run({"frame": frame, "state": states[1]})
            expected.append(wanted[0])
            got.append(told["levels"])
            states = [wanted[1], told["stateN"]]
    truth, told_levels = np.concatenate(expected), np.concatenate(got)
    lost = np.square(told_levels - truth).sum(0) / np.square(truth - truth.mean(0)).sum(0)
    assert lost.max() < 0.05, "the chain of the device follows the chain of the float model"


def test_a_refusal_of_a_model_with_series_counts_series(tmp_path: Path, key: Path) -> None:
    model, samples, output = tmp_path / "model.onnx", tmp_path / "samples.npz", tmp_path / "out"
    onnx.save(_filter(), model)
    np.savez(samples, frame=_signal(SAMPLES, 1), state=np.zeros((SAMPLES, 1, UNITS), np.float32))
    settings, profile = tmp_path / "edgepack.toml", tmp_path / "strict.toml"
    settings.write_text(
        '[inputs.state]\nkind = "raw"\nfrom = "stateN"\nsteps = 5\n\n'
        '[outputs.levels]\ntask = "values"\n'
    )
    profile.write_text(
        '[profile]\nname = "strict"\nextends = "cpu"\n\n[gates]\nfloat_instead = []\n'
        "[gates.accuracy.values]\nkeep = 0.99999\n"
    )
    words = ["--profile", profile, "--calibration", samples, "--config", settings, "--key", key]
    command = [sys.executable, "-m", "edgepack.cli", "build", str(model), *map(str, words)]
    command += ["--prefer", "size", "-o", str(output), "--version", "1.0.0"]
    done = warm_programs.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout
    report = html.unescape((tmp_path / "out.report.html").read_text())
    assert "10 held-out series" in done.stderr
    for told in (done.stderr, report):
        assert "held-out samples)" not in told
    assert "Accuracy on 10 held-out series" in report
    assert "held out for the verdict, in series of 5" in report


def test_an_unnamed_state_that_no_sample_varies_makes_the_verdict_weak(
    tmp_path: Path, key: Path
) -> None:
    model, samples, settings = (tmp_path / name for name in ("m.onnx", "s.npz", "edgepack.toml"))
    onnx.save(_filter("memory"), model)
    np.savez(samples, frame=_signal(SAMPLES, 1), state=np.zeros((SAMPLES, 1, UNITS), np.float32))
    words = ("--profile", "vitisai-xint8", "--calibration", samples, "--config", settings)
    outputs = '[outputs.levels]\ntask = "values"\n[outputs.memory]\ntask = "ignored"\n'
    for source, is_weak in ((None, True), ("memory", False)):
        declared = f'[inputs.state]\nkind = "raw"\nfrom = "{source}"\n' if source else ""
        settings.write_text(declared + outputs)
        bundle = tmp_path / f"{source}-1.0.0.edgepack"
        done = _run("edgepack.cli", "build", model, *words, "--key", key, "-o", bundle)
        assert ("input 'state' is the same in all" in done.stdout) == is_weak, done.stdout
        assert ("from = 'memory'" in done.stdout) == is_weak


@pytest.mark.parametrize("declares", [False, True], ids=["not declared", "declared"])
def test_a_state_that_is_the_answer_is_judged_as_declared_or_weak(
    tmp_path: Path, key: Path, declares: bool
) -> None:
    model, samples, settings = (tmp_path / name for name in ("m.onnx", "s.npz", "edgepack.toml"))
    onnx.save(_filter(), model)
    np.savez(samples, frame=_signal(SAMPLES, 1), state=np.zeros((SAMPLES, 1, UNITS), np.float32))
    settings.write_text(
        '[outputs.levels]\ntask = "ignored"\n' + '[outputs.stateN]\ntask = "values"\n' * declares
    )
    words = ("--profile", "vitisai-xint8", "--calibration", samples, "--config", settings)
    built = tmp_path / "m-1.0.0.edgepack"
    done = _run("edgepack.cli", "build", model, *words, "--key", key, "-o", built)
    assert "of output 'stateN' is" in done.stdout
    assert ("nothing tells what 'stateN' means" in done.stdout) == (not declares), done.stdout
