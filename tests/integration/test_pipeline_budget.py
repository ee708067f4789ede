"""The gate at the end of a pipeline: a stage that keeps its own budget may still cost too much."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.agent import open_model
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import decode_manifest
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.pipeline.build_options import BuildOptions
from edgepack.packager.pipeline.request import derive_request
from edgepack.packager.progress import BuildStep
from edgepack.packager.stages.build import build_pipeline
from tests.integration.picture_builds import edgepack
from tests.simulators.pipelines import pipeline_of_two

_SIZE = 64
_MIXED = """
[[variant]]
name = "mixed"
stages = { first = "small.toml" }
"""
_PROFILE = """
[profile]
name = "small"
extends = "cpu"
[gates]
float_instead = []
prefer = "size"
"""


def save_graph(path: Path, operators: tuple[tuple[str, str], ...], **weights: np.ndarray) -> None:
    """Write a chain of operators with a weight each, "" for none."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _SIZE]) for name in "xy"]
    names = ["x", *(f"t{number}" for number in range(len(operators) - 1)), "y"]
    nodes = [
        helper.make_node(kind, [names[n], *filter(None, [weight])], [names[n + 1]], name=f"n{n}")
        for n, (kind, weight) in enumerate(operators)
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, path.stem, ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pipeline whose second stage makes small errors of the first one great."""
    folder = tmp_path_factory.mktemp("waves")
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 1 / 8, (_SIZE, _SIZE)).astype(np.float32)
    save_graph(folder / "product.onnx", (("MatMul", "w"),), w=weight)
    times = np.full(_SIZE, 40, np.float32)
    save_graph(folder / "wave.onnx", (("Mul", "k"), ("Sin", "")), k=times)
    samples = folder / "samples"
    samples.mkdir()
    for number in range(48):
        start = rng.normal(0, 1, (1, _SIZE)).astype(np.float32)
        (samples / f"{number:02}.npz").write_bytes(encode_arrays({"start": start}))
    (folder / "small.toml").write_text(_PROFILE)
    return folder


def _describe(keep: float) -> str:
    return pipeline_of_two("product.onnx", "wave.onnx", size=_SIZE, keep=keep) + _MIXED


def _build(
    folder: Path,
    key: Path,
    keep: float,
    *,
    more: str = "",
    change: tuple[str, str] = ("", ""),
    **options: Any,
) -> Path:
    text = _describe(keep).replace(*change)
    (folder / "pipeline.toml").write_text(text + more)
    output = folder / f"waves-1.{len(options) + len(more)}.{round(100 * keep)}"
    build(
        folder / "pipeline.toml",
        calibration=folder / "samples",
        key=key,
        output=output,
        **options,
    )
    return output


def test_stage_that_costs_most_becomes_float(folder: Path, key: Path) -> None:
    bundle = _build(folder, key, 0.99)
    (variant,) = decode_manifest((bundle / "manifest.json").read_bytes()).variants
    assert {part.component: part.name for part in variant.parts} == {
        "first": "fp32",
        "second": "fp32",
    }
    report = (bundle / "report.json").read_text()
    assert "Stage 'first' is float: with its profile small the pipeline kept" in report
    assert not (bundle / "model" / "first.small").exists()
    loose = _build(folder, key, 0.0)
    (variant,) = decode_manifest((loose / "manifest.json").read_bytes()).variants
    assert variant.parts[0].name == "small"
    quantized = onnx.load(loose / "model" / "first.small" / "model.onnx")
    assert "DequantizeLinear" in {node.op_type for node in quantized.graph.node}


def test_encrypted_pipeline_runs_on_its_device(folder: Path, key: Path) -> None:
    own = folder / "device"
    write_key_pair(generate_key(), own)
    bundle = _build(folder, key, 0.0, encrypt_to=[own.with_suffix(".pub")])
    for path in (bundle / "model").rglob("*.onnx"):
        assert b"MatMul" not in path.read_bytes()
    state = folder / "state"
    state.mkdir()
    (state / "agent.toml").write_text(
        f'device = "d"\nstate_dir = "{state}"\n[trust]\nkeys = ["{key.with_suffix(".pub")}"]\n'
        f'[decryption]\nkey_file = "{own.with_suffix(".key")}"\n'
    )
    words = ("install", bundle, "--config", state / "agent.toml", "--soak", "0")
    edgepack(*words, module="edgepack.agent.cli")
    with open_model("waves", state, threads=1) as model:
        end = model.run({"start": np.zeros((1, _SIZE), np.float32)})["end"]
    assert end.shape == (1, _SIZE)
    assert np.abs(end).max() < 0.5


def test_options_that_a_pipeline_does_not_take_are_named(folder: Path, key: Path) -> None:
    with pytest.raises(BuildError, match=r"without the options shapes, delta_from"):
        build(
            folder / "pipeline.toml",
            profiles=["fp32"],
            calibration=folder / "samples",
            key=key,
            output=folder / "other-1.0.0",
            shapes={"start": (1, 64)},
            delta_from=[folder / "older.edgepack"],
        )


def test_keep_going_publishes_the_variants_that_hold(folder: Path, key: Path) -> None:
    wave = onnx.load(folder / "wave.onnx")
    for end in (*wave.graph.input, *wave.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(wave, folder / "free.onnx")
    more = '[[variant]]\nname = "npu"\nstages = { second = "qnn-htp" }\n'
    words = ("wave.onnx", "free.onnx")
    with pytest.raises(BuildError, match=r"stage 'second', profile 'qnn-htp'.*"):
        _build(folder, key, 0.0, more=more, change=words)
    bundle = _build(folder, key, 0.0, more=more, change=words, keep_going=True)
    names = [one.name for one in decode_manifest((bundle / "manifest.json").read_bytes()).variants]
    assert names == ["mixed"]
    (refused,) = json.loads((bundle / "report.json").read_text())["refused"]
    assert refused["profile"] == "npu"
    assert "stage 'second'" in refused["problem"]


_SEEN = """
[pipeline]
task = "values"
outputs = ["seen"]
[inputs.picture]
[[step]]
kind = "resize"
input = "picture"
output = "page"
least_side = 32
[[stage]]
name = "see"
model = "see.onnx"
inputs = { x = "page" }
outputs = { y = "seen" }
shape = { x = [1, 3, 64, 128] }
"""
_FIXED = """
[profile]
name = "fixed"
extends = "fp32"
[limits]
static_shapes = true
"""


def test_stage_that_is_float_for_its_padding_and_its_shape_is_told_so(
    tmp_path: Path, key: Path
) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 1, 1])
    nodes = [
        helper.make_node("AveragePool", ["x"], ["a"], "a", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["a"], ["y"], "y"),
    ]
    graph = helper.make_graph(nodes, "see", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "see.onnx")
    (tmp_path / "pipeline.toml").write_text(_SEEN)
    (tmp_path / "fixed.toml").write_text(_FIXED)
    samples = tmp_path / "pages"
    samples.mkdir()
    rng = np.random.default_rng(5)
    for number in range(24):
        page = rng.integers(0, 256, (1, 32, 160 if number == 1 else 64, 3)).astype(np.uint8)
        page[..., :2] //= number + 1
        (samples / f"{number:02}.npz").write_bytes(encode_arrays({"picture": page}))
    bundle = tmp_path / "seen-1.0.0"
    profiles = [str(tmp_path / "fixed.toml")]
    build(
        tmp_path / "pipeline.toml", profiles=profiles, calibration=samples, key=key, output=bundle
    )
    report = (bundle / "report.json").read_text()
    assert "Stage 'see' is float: with its profile fixed the pipeline kept" in report
    assert "With fixed shapes, stage 'see' reads padding as pixels: AveragePool 'a'" in report
    assert "1 of its 8 held-out inputs are larger, up to [1, 3, 32, 160]: they are shrunk" in report


def test_budget_without_time_for_a_variant_is_named(folder: Path, key: Path) -> None:
    with pytest.raises(BuildError, match="the time of the build ended") as caught:
        _build(folder, key, 0.0, profiles=["fp32"], budget="0.001s")
    assert caught.value.found_in == "--budget"


def test_variant_after_the_end_of_the_time_is_reported_as_not_finished(
    folder: Path, key: Path
) -> None:
    (folder / "pipeline.toml").write_text(_describe(0.0))
    now_s = [0.0]

    def jump(step: BuildStep) -> None:
        if step.what == "judged from input to output":
            now_s[0] = 5000.0

    options = BuildOptions(
        profiles=["fp32"],
        calibration=folder / "samples",
        key=key,
        output=folder / "waves-2.0.0",
        budget="1h",
    )
    request = derive_request(folder / "pipeline.toml", options)
    result = build_pipeline(folder / "pipeline.toml", request, jump, lambda: now_s[0])
    assert [one.name for one in result.report.variants] == ["mixed"]
    assert [(one.profile, one.is_unfinished) for one in result.refused] == [("fp32", True)]
