"""A real model through the profile `openvino-cpu`, measured on OpenVINO itself."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.plain_runtime import PlainRelease, find_releases
from edgepack.packager.tensors.sequence import SampleSplit
from tests.integration.test_quantize_qnn import DIGITS, part
from tests.unit.packager_passes.models import samples_for
from tests.unit.packager_passes.preparing import prepare

pytestmark = pytest.mark.openvino


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> PreparedVariant:
    """Return the digits model for `openvino-cpu`."""
    return prepare(
        DIGITS,
        load_profile("openvino-cpu"),
        SampleSplit(calibration=part(0, 30), search=part(30, 15), held_out=part(45, 20)),
        tmp_path_factory.mktemp("digits"),
        plain_releases=find_releases(()),
    )


def test_the_variant_is_measured_and_placed_on_openvino(variant: PreparedVariant) -> None:
    assert variant.accuracy.provider == "OpenVINOExecutionProvider"
    assert variant.accuracy.value >= variant.accuracy.budget
    assert variant.placement.verified
    assert variant.placement.taken == variant.placement.total


def test_a_variant_that_is_not_faster_than_float_on_openvino_is_not_published(
    variant: PreparedVariant,
) -> None:
    timing = variant.timing
    assert timing is not None
    assert timing.latency_ms is not None
    assert timing.outcome in ("faster", "not faster", "undecided")
    assert (variant.precision == "fp32") == (timing.outcome == "not faster")
    assert bool(variant.float_because) == (timing.outcome == "not faster")
    undecided = [note for note in variant.timed_notes if note.startswith("Undecided")]
    assert bool(undecided) == (timing.outcome == "undecided")


def test_a_plain_session_on_openvino_with_the_named_settings_is_right(
    variant: PreparedVariant,
) -> None:
    plain = variant.plain_provider
    assert plain is not None
    assert plain.right
    assert plain.releases == (onnxruntime.__version__,)
    assert variant.plain_runtime is not None, "the CPU provider is looked at too"
    settings = profile_settings(load_profile("openvino-cpu"))
    place = PlainRelease(release=plain.releases[0], python=sys.executable, on=settings)
    model = variant.folder / variant.model_file
    feeds = [part(45, 20).read(number) for number in range(4)]
    with place.open(model, plain.session_options) as run:
        got = [next(iter(run(each).values())) for each in feeds]
    with PlainRelease(release="").open(DIGITS, {}) as run:
        expected = [next(iter(run(each).values())) for each in feeds]
    assert [values.argmax() for values in got] == [values.argmax() for values in expected]


def _two_attention_blocks() -> onnx.ModelProto:
    """Return two blocks of attention and two products each; OpenVINO of onnxruntime 1.24 crashes on
    this model.
    """
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def apply(op: str, *inputs: str, **settings: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], f"n{len(nodes)}", **settings))
        return str(nodes[-1].output[0])

    def multiply(name: str, *shape: int) -> str:
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return apply("MatMul", name, weights[-1].name)

    name = "x"
    for _ in range(2):
        query, key, value = (multiply(name, 16, 16) for _ in range(3))
        shares = apply("MatMul", query, apply("Transpose", key, perm=[0, 2, 1]))
        name = apply("Add", name, apply("MatMul", apply("Softmax", shares, axis=-1), value))
        name = apply("Add", name, multiply(apply("Relu", multiply(name, 16, 64)), 64, 16))
    given, made = (
        helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, [1, 8, 16])
        for end in ("x", name)
    )
    graph = helper.make_graph(nodes, "blocks", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_OPEN = """
import sys
from pathlib import Path
from edgepack.agent.runtime.opening import open_model_file
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.evaluator import profile_settings
open_model_file(Path(sys.argv[1]), profile_settings(load_profile("openvino-cpu")))
"""


def test_a_model_that_crashes_openvino_is_an_error_and_not_the_end_of_the_build(
    tmp_path: Path,
) -> None:
    model = _two_attention_blocks()
    onnx.save(model, tmp_path / "model.onnx")
    command = [sys.executable, "-c", _OPEN, str(tmp_path / "model.onnx")]
    if subprocess.run(command, check=False).returncode >= 0:
        pytest.skip("this OpenVINO opens it")
    samples = samples_for(model, 12)
    split = SampleSplit(
        calibration=samples.pick(range(4)),
        search=samples.pick(range(4, 8)),
        held_out=samples.pick(range(8, 12)),
    )
    profile = load_profile("openvino-cpu")
    with pytest.raises(BuildError, match="does not survive OpenVINOExecutionProvider") as caught:
        prepare(tmp_path / "model.onnx", profile, split, tmp_path / "work")
    assert caught.value.remedy is not None
    assert "another profile" in caught.value.remedy
