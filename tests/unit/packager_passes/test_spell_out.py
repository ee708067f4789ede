"""Operators that a provider computes wrongly are written as others that compute the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.judging.measure import ModelRunner, Outputs
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.spell_out import spell_out
from edgepack.packager.profile.pass_settings import SpellOut
from edgepack.packager.profile.reading import load_profile
from edgepack.packager.profile.schema import Limits
from edgepack.packager.samples.sequence import Samples
from tests.unit.packager_passes.models import make_model, samples_for, weight


def _context(folder: Path) -> PassContext:
    samples = Samples(count=0, read=lambda index: {}, source="none")
    return PassContext(profile_name="mine", limits=Limits(), samples=samples, work_dir=folder)


def _two_reciprocals() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Reciprocal", ["x"], ["once"], name="first"),
        node("Add", ["once", "x"], ["sum"], name="add"),
        node("Reciprocal", ["sum"], ["y"], name="second"),
    ]
    return make_model(nodes, {"x": [1, 4]}, {"y": [1, 4]}, [])


def test_a_reciprocal_becomes_a_quotient_with_the_same_value(tmp_path: Path) -> None:
    feeds: Outputs = {"x": np.array([[0.01, 0.5, 2.0, -3.0]], dtype=np.float32)}
    before = ModelRunner(_two_reciprocals(), tmp_path / "before.onnx").run(feeds)["y"]
    result = spell_out(_two_reciprocals(), SpellOut(), _context(tmp_path))
    assert [node.op_type for node in result.model.graph.node] == ["Div", "Add", "Div"]
    assert [tensor.name for tensor in result.model.graph.initializer] == ["edgepack/one/1"]
    assert result.notes == ("2 Reciprocal became Div, which the provider computes right.",)
    onnx.checker.check_model(result.model)
    after = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)["y"]
    assert np.allclose(after.astype(np.float64), before.astype(np.float64), rtol=1e-6)


def _gated(rows: int, *, gate_of: str = "c", swapped: bool = False) -> onnx.ModelProto:
    """A convolution of x (1, 3, rows, 5) times the Sigmoid of a tensor, and once more added."""
    node = helper.make_node
    factors = ["s", "c"] if swapped else ["c", "s"]
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Conv", ["x", "v"], ["d"], name="other"),
        node("Sigmoid", [gate_of], ["s"], name="sigmoid"),
        node("Mul", factors, ["g"], name="gate"),
        node("Add", ["g", "c"], ["h"], name="add"),
        node("Add", ["h", "d"], ["y"], name="last"),
    ]
    shape = (1, 3, rows, 5)
    weights = [weight("w", 3, 3, 1, 1), weight("v", 3, 3, 1, 1, seed=1)]
    return make_model(nodes, {"x": shape}, {"y": shape}, weights)


@pytest.mark.parametrize("rows", [9, 12])
@pytest.mark.parametrize("gate_of", ["c", "d"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_convolution_meets_a_sigmoid_apart_on_maps_of_some_sizes(
    rows: int, gate_of: str, swapped: bool, tmp_path: Path
) -> None:
    model = _gated(rows, gate_of=gate_of, swapped=swapped)
    [feeds] = samples_for(model, 1)
    before = ModelRunner(model, tmp_path / "before.onnx").run(feeds)["y"]
    result = spell_out(model, SpellOut(), _context(tmp_path))
    onnx.checker.check_model(result.model, full_check=True)
    apart, gate = (n for n in result.model.graph.node if n.op_type == "Mul")
    assert list(apart.input) == ["c", "edgepack/one/1"]
    assert set(gate.input) == {apart.output[0], "s"}
    assert result.notes[0].startswith("1 convolution(s) that meet a Sigmoid were set apart")
    after = ModelRunner(result.model, tmp_path / "after.onnx").run(feeds)["y"]
    assert np.array_equal(after, before)


@pytest.mark.parametrize(("rows", "gate_of"), [(8, "c"), (13, "c"), (10, "x")])
def test_what_the_provider_computes_rightly_is_left(
    rows: int, gate_of: str, tmp_path: Path
) -> None:
    model = _gated(rows, gate_of=gate_of)
    before = model.SerializeToString()
    result = spell_out(model, SpellOut(), _context(tmp_path))
    assert (result.model.SerializeToString(), result.notes) == (before, ())


def test_a_model_without_them_is_left_as_it_is(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"], name="neg")], {"x": [1]}, {"y": [1]}, []
    )
    before = model.SerializeToString()
    result = spell_out(model, SpellOut(), _context(tmp_path))
    assert (result.model.SerializeToString(), result.notes) == (before, ())


def test_without_inferred_types_it_says_which_pass_must_come_first(tmp_path: Path) -> None:
    model = _two_reciprocals()
    del model.graph.value_info[:]
    with pytest.raises(BuildError, match="the type of 'sum' is not known") as refused:
        spell_out(model, SpellOut(), _context(tmp_path))
    assert refused.value.remedy == "put the pass after infer_shapes"


@pytest.mark.parametrize("name", ["qnn-htp", "qnn-htp-a8w8", "qnn-htp-v73"])
def test_profiles_for_qnn_have_it(name: str) -> None:
    assert SpellOut() in load_profile(name).passes
