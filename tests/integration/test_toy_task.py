"""A task is added by a folder in each place and a line in a table, and works from build to device.

The test copies the sources, adds the task `toy` (the parity of a number), and runs the commands of
the copy.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import decode_manifest
from tests.graphs import graph_model

ROOT = Path(__file__).parents[2]
SOURCES = ("agent", "packager", "fleet", "profiles", "firmware_hooks")

ON_DEVICES = '''"""Measure whether numbers are even or odd."""

import numpy as np

from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch

PARITY = Scale(metric="parity", least=0.99)


def parity(value):
    return np.rint(value).astype(int).ravel() % 2


def compare(output, expected, got):
    same = [float((parity(a) == parity(b)).mean()) for a, b in zip(expected, got, strict=True)]
    measure = Measure(scale=PARITY, value=float(np.mean(same)), output=output)
    return Compared(measures=(measure,), losses=1.0 - np.array(same))


def sketch(part, outputs):
    odd = float(parity(outputs[part.outputs[0]]).mean())
    return Sketch(shares={"odd": odd}, share_words="share of {} numbers", rest="")


TASK = ValueTask("toy", "whether numbers are odd", "parities", compare, sketch, is_decision=True)
'''

IN_BUILDS = '''"""Recognize parities by their name."""

from edgepack.tasks.description import TaskOutputs


def recognize(name, values):
    return TaskOutputs(task="toy", outputs=(name,), source="graph") if name == "parity" else None
'''


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the sources with the task, unknown to all other files."""
    copied = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        shutil.copytree(
            ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    agent, packager = (
        copied / "agent/edgepack/tasks/toy",
        copied / "packager/edgepack/packager/tasks/toy",
    )
    for folder, file, content in (
        (agent, "measure.py", ON_DEVICES),
        (packager, "recognize.py", IN_BUILDS),
    ):
        folder.mkdir()
        (folder / "__init__.py").write_text('"""A toy."""\n')
        (folder / file).write_text(content)
    table = copied / "agent/edgepack/tasks/table.py"
    text = table.read_text()
    assert text.count('    "anomaly",\n') == 1
    table.write_text(text.replace('    "anomaly",\n', '    "anomaly",\n    "toy",\n'))
    return copied


def run(sources: Path, *words: str | Path, folder: Path) -> str:
    """Run a module of the copied sources and return its output."""
    paths = os.pathsep.join(str(sources / name) for name in SOURCES)
    done = subprocess.run(
        [sys.executable, "-P", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1"},
        cwd=folder,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def toy_model() -> onnx.ModelProto:
    weights = np.random.default_rng(0).normal(0, 2, (8, 4)).astype(np.float32)
    return graph_model(
        "(float[1,8] x) => (float[1,4] parity) { [gemm] parity = Gemm(x, w) }", {"w": weights}
    )


ON_DEVICE = """
import json, sys
from pathlib import Path
import numpy as np
from edgepack.agent.telemetry import sketches
from edgepack.agent.telemetry.drift import DriftWatch
from edgepack.bundle.golden import is_same_answer, read_golden, compare_outputs
from edgepack.bundle.manifest import decode_manifest
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.tasks.table import items_of

folder = Path(sys.argv[1])
manifest = decode_manifest((folder / "manifest.json").read_bytes())
golden = read_golden(folder / "golden" / "golden.npz")
facts = manifest.variants[-1].facts
right = compare_outputs(golden.outputs, golden.outputs, {}, facts.agreements)
other = [{"parity": one["parity"] + 1} for one in golden.outputs]
wrong = compare_outputs(golden.outputs, other, {}, facts.agreements)
sketches.SAMPLE_S = 0.0
recorder = sketches.SketchRecorder()
recorder.expect(manifest.facts.reference, manifest.facts.description)
for _ in range(60):
    recorder.offer({}, {"parity": np.ones((1, 4), np.float32)})
    recorder.snapshot()
drift = DriftWatch().add(("d", "v", "p"), recorder.snapshot())
items = items_of(manifest.facts.description)
print(json.dumps({
    "tasks": [part.task for part in manifest.facts.description.parts],
    "right": [right.right, right.because], "wrong": [wrong.right, wrong.task_lost],
    "shadow": is_same_answer(golden.outputs[0], other[0], {}, facts.agreements),
    "drift": [one.words for one in drift.features],
    "gate": BY_NAME["shadow"].worded(0.1, items),
}))
"""


def test_a_task_of_two_folders_and_one_line_works_from_build_to_device(
    sources: Path, tmp_path: Path
) -> None:
    private, _ = write_key_pair(generate_key(), tmp_path / "release")
    onnx.save(toy_model(), tmp_path / "toy.onnx")
    drawn = np.random.default_rng(1).normal(0, 1, (60, 1, 8)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=drawn[:, 0])
    edgepack = ("-m", "edgepack.cli")
    given = (*edgepack, "build", "toy.onnx", "--profile", "fp32", "--calibration", "samples.npz")
    run(sources, *given, "--key", private, "-o", "toy-1.0.0", folder=tmp_path)
    manifest = decode_manifest((tmp_path / "toy-1.0.0" / "manifest.json").read_bytes())
    assert [part.task for part in manifest.facts.description.parts] == ["toy"]
    (tmp_path / "on_device.py").write_text(ON_DEVICE)
    seen = json.loads(run(sources, "on_device.py", "toy-1.0.0", folder=tmp_path))
    assert seen["tasks"] == ["toy"]
    assert seen["right"][0] is True
    assert "toy: parity 1.0000" in seen["right"][1]
    assert seen["wrong"] == [False, pytest.approx(1.0)]
    assert seen["shadow"] is False
    assert seen["drift"][0] == "share of odd numbers"
    assert seen["gate"] == "10.0% of inferences with other parities"
    listed = run(sources, *edgepack, "profiles", "show", "cpu", folder=tmp_path)
    assert "cpu" in listed
    (tmp_path / "edgepack.toml").write_text('[outputs.parity]\ntask = "toy"\n')
    again = (*given, "--key", private, "-o", "toy-1.0.1", "--config", "edgepack.toml")
    run(sources, *again, folder=tmp_path)
    declared = decode_manifest((tmp_path / "toy-1.0.1" / "manifest.json").read_bytes())
    assert [part.source for part in declared.facts.description.parts] == ["declared"]
