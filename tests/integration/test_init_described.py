"""`edgepack init` with samples writes the build's view of the outputs."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import parser

from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.packager import build
from edgepack.packager.cli.build import init
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.inputs import RawInput
from tests.simulators.task_models import task_model
from tests.unit.packager_io.models import save, small_cnn, write_stack

_EXAMPLES = Path(__file__).parents[1] / "huggingface"


def _init(folder: Path, calibration: str) -> str:
    words = [str(folder / "model.onnx"), "-o", str(folder / "written.toml")]
    done = CliRunner().invoke(init, [*words, "--calibration", str(folder / calibration)])
    assert done.exit_code == 0, done.output
    return (folder / "written.toml").read_text()


def test_a_declared_classifier_is_described_alike_by_the_next_build(
    tmp_path: Path, key: Path
) -> None:
    save(small_cnn(), tmp_path / "model.onnx")
    write_stack(tmp_path / "samples.npz", 40)
    _init(tmp_path, "samples.npz")
    declared = read_config(tmp_path / "written.toml").outputs
    build(
        tmp_path / "model.onnx",
        profiles=["fp32"],
        config=tmp_path / "written.toml",
        key=key,
        version="1.0.0",
        output=tmp_path / "built",
    )
    described = decode_manifest((tmp_path / "built" / MANIFEST_FILE).read_bytes()).facts.description
    assert described.parts
    for part in described.parts:
        for name in part.outputs:
            assert name not in declared or declared[name].task == part.task
            assert (part.source == "declared") == (name in declared)


def test_an_output_that_nothing_explains_is_asked_for_and_not_declared(tmp_path: Path) -> None:
    task = task_model("sensor_quantities")
    onnx.save(task.model, tmp_path / "model.onnx")
    (tmp_path / "samples").mkdir()
    for number, feeds in enumerate(task.calibration):
        np.savez(tmp_path / "samples" / f"{number:03}.npz", **feeds)  # type: ignore[arg-type]
    text = _init(tmp_path, "samples")
    assert "# Nothing shows what these outputs mean." in text
    assert "# [outputs.quantities]" in text
    assert read_config(tmp_path / "written.toml").outputs == {}
    for line in ("[outputs.quantities]", 'task = "values"'):
        assert text.count(f"# {line}") == 1
        text = text.replace(f"# {line}", line, 1)
    (tmp_path / "written.toml").write_text(text)
    edited = read_config(tmp_path / "written.toml")
    assert [declared.task for declared in edited.outputs.values()] == ["values"]
    assert edited.calibration.path == "samples" or edited.calibration.path.endswith("/samples")


@pytest.mark.parametrize(
    ("outputs", "asked"),
    [
        ("float[1,4] stateN, float[1,12] y", '# from = "stateN"  # or "" for no state'),
        (
            "float[1,4] memory, float[1,4] copy, float[1,12] y",
            '# from = "memory"  # or from = "copy" or "" for no state',
        ),
        ("float[1,12] y", ""),
    ],
    ids=["by name", "by shape", "none"],
)
def test_input_that_may_be_a_state_has_comments_to_fill_in(
    tmp_path: Path, outputs: str, asked: str
) -> None:
    first, *others = outputs.split()[1::2]
    state = first.strip(",")
    copies = " ".join(f"{name.strip(',')} = Identity(state)" for name in (first, *others)[:-1])
    graph = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        steps (float[1,8] x, float[1,4] state) => ({outputs}) {{
            {copies} y = Concat<axis = 1>(x, state) }}""")
    onnx.save(graph, tmp_path / "model.onnx")
    written = tmp_path / "written.toml"
    done = CliRunner().invoke(init, [str(tmp_path / "model.onnx"), "-o", str(written)])
    assert done.exit_code == 0, done.output
    text = written.read_text()
    assert ("steps = 50" in text) == bool(asked)
    if asked:
        assert asked in text
        assert text.index("[inputs.state]") < text.index(asked) < text.index("[calibration]")
        for line in (asked, "# steps = 50"):
            text = text.replace(line, line[2:])
        written.write_text(text)
        assert read_config(written).inputs["state"] == RawInput(fed_from=state, steps=50)


def test_a_guess_by_values_is_asked_for_and_not_declared(tmp_path: Path) -> None:
    rows = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        rows (float[1,4] x) => (float[1,4] y) <float[1] gain = {8.0}> { y = Mul (x, gain) }""")
    onnx.save(rows, tmp_path / "model.onnx")
    drawn = np.random.default_rng(3).normal(0.0, 1.0, (120, 4)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=drawn)
    text = _init(tmp_path, "samples.npz")
    assert read_config(tmp_path / "written.toml").outputs == {}
    assert '# [outputs.y]\n# task = "classification"  # or "values", "ignored"' in text


def test_a_single_positive_number_is_offered_as_values_first(tmp_path: Path) -> None:
    rows = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        rows (float[1,4] x) => (float[1,1] y) { e = Exp (x) y = ReduceSum (e) }""")
    onnx.save(rows, tmp_path / "model.onnx")
    drawn = np.random.default_rng(3).normal(0.0, 1.0, (120, 4)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=drawn)
    asked = '# [outputs.y]\n# task = "values"  # or "anomaly", "ignored"'
    assert asked in _init(tmp_path, "samples.npz")


def test_a_folder_of_a_language_model_is_described_by_prompts(tmp_path: Path) -> None:
    words = [str(_EXAMPLES / "llama"), "-o", str(tmp_path / "written.toml"), "--calibration"]
    done = CliRunner().invoke(init, [*words, str(_EXAMPLES / "prompts.jsonl")])
    assert done.exit_code == 0, f"{done.exception} {done.output}"
    declared = read_config(tmp_path / "written.toml").outputs
    assert {name: one.task for name, one in declared.items()} == {"logits": "tokens"}
    assert "present" not in (tmp_path / "written.toml").read_text()


def test_a_file_in_another_folder_names_model_and_samples(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(_EXAMPLES / "llama", tmp_path / "talker")
    shutil.copy(_EXAMPLES / "prompts.jsonl", folder)
    monkeypatch.chdir(folder)
    words = [".", "-o", "../written.toml", "--calibration", "prompts.jsonl"]
    done = CliRunner().invoke(init, words)
    assert done.exit_code == 0, done.output
    config = tmp_path / "written.toml"
    assert read_config(config).model.name == "talker"
    built = build(Path(), profiles=["fp32"], config=config, key=key, version="1.0.0", output="out")
    assert "of the folder talker:" in " ".join(built.report.notes)
