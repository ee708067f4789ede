"""Hardware without control flow computes both branches of an If and takes one."""

from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import TensorProto, helper

from edgepack.packager.passes.clean import clean
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profiles.pass_settings import Clean
from edgepack.packager.profiles.schema import Limits
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.unit.packager_passes.models import constant, make_model, samples_for, weight
from tests.unit.packager_passes.passing import context_of, copy_of, difference, kinds_of

_node = helper.make_node


def _branch(
    output: str, *nodes: onnx.NodeProto, weights: tuple[onnx.TensorProto, ...] = ()
) -> onnx.GraphProto:
    given = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), output, [], [given], list(weights))


def _model(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    """x float32 (1, 4) to y: one branch where the sum of x is positive, the other elsewhere."""
    return make_model(
        [
            _node("MatMul", ["x", "w"], ["h"], name="first"),
            _node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
            _node("Greater", ["sum", "zero"], ["is_positive"], name="greater"),
            _node("If", ["is_positive"], ["y"], name="choose", then_branch=then, else_branch=other),
        ],
        {"x": [1, 4]},
        {"y": [1, 4]},
        [weight("w", 4, 4), constant("zero", 0.0)],
    )


def _confirming() -> onnx.ModelProto:
    """One branch has weights and names that the other has too, and one gives an outer tensor."""
    inner = _branch(
        "twice",
        _node("MatMul", ["h", "inner"], ["t"], name="inner"),
        _node("Relu", ["t"], ["twice"], name="last"),
        weights=(weight("inner", 4, 4, seed=1),),
    )
    other = _branch("t", _node("Identity", ["h"], ["t"], name="last"))
    return _model(inner, other)


def _cleaned(
    model: onnx.ModelProto, folder: Path, forbidden: tuple[str, ...], samples: Samples | None = None
) -> PassResult:
    context: PassContext = replace(
        context_of(model, folder),
        limits=Limits(forbidden_ops=forbidden),
        samples=samples or samples_for(model, 4),
    )
    return clean(copy_of(model), Clean(), context)


def test_a_branch_that_the_data_decides_is_computed_and_chosen(tmp_path: Path) -> None:
    model = _confirming()
    result = _cleaned(model, tmp_path, ("If",))
    assert "If" not in kinds_of(result.model)
    assert kinds_of(result.model).count("MatMul") == 2
    assert "Where" in kinds_of(result.model)
    (note,) = result.notes
    assert note.startswith("Both branches of choose are computed in every inference")
    before = ModelRunner(model, tmp_path / "a.onnx")
    after = ModelRunner(result.model, tmp_path / "b.onnx")
    for sign in (1.0, -1.0):
        feeds: Feeds = {"x": np.full((1, 4), sign, dtype=np.float32)}
        assert largest_difference([before.run(feeds)], [after.run(feeds)]) < 1e-6


def test_hardware_with_control_flow_keeps_the_if(tmp_path: Path) -> None:
    result = _cleaned(_confirming(), tmp_path, ())
    assert "If" in kinds_of(result.model)
    assert result.notes == ()


def test_an_if_inside_a_branch_goes_too(tmp_path: Path) -> None:
    inner = _node(
        "If",
        ["is_positive"],
        ["deep"],
        name="inside",
        then_branch=_branch("a", _node("Neg", ["h"], ["a"], name="neg")),
        else_branch=_branch("b", _node("Relu", ["h"], ["b"], name="relu")),
    )
    model = _model(
        _branch("deep", inner), _branch("c", _node("Sigmoid", ["h"], ["c"], name="sigmoid"))
    )
    result = _cleaned(model, tmp_path, ("If",))
    assert "If" not in kinds_of(result.model)
    assert kinds_of(result.model).count("Where") == 2
    assert difference(model, result.model, tmp_path) < 1e-6


def test_branches_that_give_different_shapes_stay(tmp_path: Path) -> None:
    model = _model(
        _branch("a", _node("Neg", ["h"], ["a"], name="neg")),
        _branch("b", _node("Concat", ["h", "h"], ["b"], name="join", axis=1)),
    )
    result = _cleaned(model, tmp_path, ("If",))
    assert "If" in kinds_of(result.model)
    assert result.notes == ()


def test_an_if_that_a_fixed_input_would_fold_stays(tmp_path: Path) -> None:
    model = _confirming()
    same: Feeds = {"x": np.ones((1, 4), dtype=np.float32)}
    samples = Samples(count=4, read=lambda _: same, source="made")
    result = _cleaned(model, tmp_path, ("If",), samples)
    assert "If" in kinds_of(result.model), "--value is offered instead: it computes one branch"
