"""Parts of a quantized graph run, and compute what the whole graph computes there."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.packager.graph.units import Units
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import cnn, parsed_model, samples_for, weight
from tests.unit.packager_passes.qdq_graph import PAIRS


def _quantized(folder: Path, high_precision_nodes: tuple[str, ...] = ()) -> onnx.ModelProto:
    model = cnn()
    settings = load_profile("qnn-htp-a8w8").quantize
    assert settings is not None
    quantizer = StaticCandidateMaker(
        model, settings, samples_for(model, 4), work_dir=folder, progress=silent
    )
    return quantizer.build(spec("minmax", (), high_precision_nodes)).model


def _run(model: onnx.ModelProto, wanted: str = "") -> dict[str, np.ndarray]:
    """Its outputs, or one of its tensors."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    if wanted:
        shown.graph.output.append(onnx.ValueInfoProto(name=wanted))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options)
    feeds = samples_for(cnn(), 1).read(0)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("is_high_precision", [False, True])
def test_every_part_from_the_inputs_on_computes_what_the_whole_one_does(
    tmp_path: Path, is_high_precision: bool
) -> None:
    computed = [node.name for node in cnn().graph.node]
    model = _quantized(tmp_path, tuple(computed[1::3]) if is_high_precision else ())
    units = Units(model)
    assert units.count > 4
    for end in range(1, units.count + 1):
        part = units.take(0, end)
        assert [value.name for value in part.graph.input] == ["images"]
        made = [n.name for n in part.graph.node if n.op_type not in PAIRS]
        assert made == [node.name for node in units.nodes(0, end)]
        for name, got in _run(part).items():
            inside = name.removesuffix("/restored")
            whole = _run(model, inside)[inside]
            want = whole if name == inside else _restored(model, inside, whole)
            np.testing.assert_array_equal(got, want, err_msg=f"{name} of {made[-1]}")


def _restored(model: onnx.ModelProto, name: str, integers: np.ndarray) -> np.ndarray:
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    made_by = next(node for node in model.graph.node if name in node.output)
    scale, zero_point = (constants[made_by.input[place]] for place in (1, 2))
    steps = integers.astype(np.int32) - zero_point.astype(np.int32)
    restored: np.ndarray = steps.astype(np.float32) * scale
    return restored


def test_a_part_keeps_the_pairs_around_its_nodes_and_no_others(tmp_path: Path) -> None:
    model = _quantized(tmp_path)
    units = Units(model)
    part = units.take(1, 2)
    producers = {name: node for node in part.graph.node for name in node.output}
    (node, *_) = units.nodes(1, 2)
    assert producers[node.input[0]].op_type == "DequantizeLinear"
    (quantize,) = (
        n
        for n in part.graph.node
        if n.op_type == "QuantizeLinear" and n.input[0] in units.nodes(1, 2)[-1].output
    )
    assert part.graph.output[0].name == f"{quantize.output[0]}/restored"
    read = {name for n in part.graph.node for name in n.input}
    assert all(tensor.name in read for tensor in part.graph.initializer)


def test_a_rectifier_that_is_computed_with_a_node_is_of_its_unit() -> None:
    units = Units(
        parsed_model(
            "(float[1,4] x) => (float[1,4] z) { [product] h = MatMul(x, w) [rectifier] r = Relu(h) "
            "[one] t = Tanh(r) [other] y = Relu(r) [sum] z = Add(t, y) }",
            [weight("w", 4, 4)],
        )
    )
    named = [tuple(n.name for n in units.nodes(i, i + 1)) for i in range(units.count)]
    assert named == [("product", "rectifier"), ("one",), ("other",), ("sum",)]
    part = units.take(0, 1)
    assert [value.name for value in part.graph.output] == ["r"]
    assert [value.name for value in units.take(1, 3).graph.input] == ["r"]
