"""A constant input becomes a constant, and its control flow is removed."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.inputs import RawInput, WantedInputs, check_declarations
from edgepack.packager.graph.edits import name_nodes
from edgepack.packager.progress import silent
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.samples.recurrence import follow_states
from edgepack.packager.source.fixed_inputs import Numbers, parse_value
from edgepack.packager.source.model import SourceModel, load_source
from tests.graphs import graph_model

_node = helper.make_node
_value = helper.make_tensor_value_info
_RATE = {"rate": (16000,)}


def _branch(name: str, factor: float) -> str:
    """Return two additions, with a constant of its own and through a nested If on the rank of `x`.

    Both branches use the same names inside, as exporters do.
    """
    return (
        f"{name} () => (float[] out, int64[] copy) <float factor = {{{factor}}}> {{ "
        "[scale] h = Mul(x, factor) [sizes] sizes = Shape(x) [rank] rank = Size(sizes) "
        "two = Constant<value_int=2>() [is_plain] is_plain = Equal(rank, two) "
        "[copy] copy = Identity(rate) "
        "[nested] out = If<then_branch = same () => (float[] s) { s = Identity(h) }, "
        "else_branch = flat () => (float[] f) { f = Squeeze(h) }>(is_plain) }"
    )


def _two_rates(rate_shape: tuple[int | str, ...] = ()) -> onnx.ModelProto:
    """Return x float32 (batch, 4) and rate int64 () to y = x * 2 at 16000, else x * 3; and the
    rate.
    """
    rate = f"int64[{','.join(map(str, rate_shape))}]" if rate_shape else "int64"
    return graph_model(
        f"({rate} rate, float[batch,4] x) => (float[batch,4] y, {rate} same_rate) {{ "
        "high = Constant<value_int=16000>() [compare] is_high = Equal(rate, high) "
        f"[choice] y, same_rate = If<then_branch = {_branch('then', 2.0)}, "
        f"else_branch = {_branch('else', 3.0)}>(is_high) }}"
    )


def _load(
    folder: Path, values: Mapping[str, Numbers] = _RATE, model: onnx.ModelProto | None = None
) -> SourceModel:
    path = folder / "rates.onnx"
    path.write_bytes((model or _two_rates()).SerializeToString())
    return load_source(path, {"x": (1, 4)}, values)


def _refusal(folder: Path, values: Mapping[str, Numbers], model: onnx.ModelProto) -> BuildError:
    with pytest.raises(BuildError) as caught:
        _load(folder, values, model)
    return caught.value


@pytest.mark.parametrize(("rate", "factor"), [(16000, 2.0), (8000, 3.0)])
def test_a_fixed_input_is_gone_and_the_branch_that_it_takes_stands_in_the_main_graph(
    tmp_path: Path, rate: int, factor: float
) -> None:
    source = _load(tmp_path, {"rate": (rate,)})
    assert [spec.name for spec in source.inputs] == ["x"]
    assert "If" not in {node.op_type for node in source.model.graph.node}, "the nested ones too"
    assert f"Input 'rate' is fixed (rate={rate})" in " ".join(source.notes)
    x = np.arange(4, dtype=np.float32)[None]
    outputs = ModelRunner(source.model, tmp_path / "out.onnx").run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x * np.float32(factor))
    assert outputs["same_rate"] == rate


def test_without_a_value_the_choice_stays(tmp_path: Path) -> None:
    source = _load(tmp_path, {})
    assert [node.op_type for node in source.model.graph.node].count("If") == 1
    assert [spec.name for spec in source.inputs] == ["rate", "x"]
    assert source.fixed == ()


def test_names_that_two_taken_branches_share_are_kept_apart(tmp_path: Path) -> None:
    model = _two_rates()
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[2])
    second.name, second.output[:] = "again", ["z", "other_rate"]
    constant = second.attribute[0].g.initializer[0]
    constant.CopyFrom(numpy_helper.from_array(np.array(5, np.float32), constant.name))
    second.attribute[1].g.initializer[0].CopyFrom(constant)
    model.graph.node.append(second)
    model.graph.output.append(_value("z", 1, ["batch", 4]))
    source = _load(tmp_path, _RATE, model)
    name_nodes(source.model.graph)  # as all who run it do
    made = [name for node in source.model.graph.node for name in node.output]
    assert len(made) == len(set(made))
    x = np.ones((1, 4), np.float32)
    outputs = ModelRunner(source.model, tmp_path / "out.onnx").run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x * 2)
    np.testing.assert_array_equal(outputs["z"], x * 5)


def test_one_number_fills_an_input_and_as_many_as_it_has_are_its_elements(tmp_path: Path) -> None:
    model = _two_rates(rate_shape=(2,))
    model.graph.node[1].input[0] = "first"
    gather = _node("Gather", ["rate", "zero"], ["first"], name="first")
    model.graph.node.insert(1, gather)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    for values, held in (((8000, 16000), [8000, 16000]), ((16000,), [16000, 16000])):
        assert _load(tmp_path, {"rate": values}, model).fixed[0].value.tolist() == held
    refusal = _refusal(tmp_path, {"rate": (1, 2, 3)}, model)
    assert refusal.problem == "input 'rate' has 2 elements, and 3 values were given"


@pytest.mark.parametrize(
    ("values", "shape", "problem", "remedy"),
    [
        ({"rates": (1,)}, (), "no input 'rates'; it has rate, x", "--value rate=…"),
        ({"rate": (0.5,)}, (), "takes int64, which does not hold", "give int64 values"),
        ({"rate": (1,)}, ("n",), "the shape of input 'rate' is open", "--shape rate=1"),
        ({"rate": (1,), "x": (0,)}, (), "every input is fixed", "leave open what a device feeds"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    tmp_path: Path,
    values: dict[str, Numbers],
    shape: tuple[int | str, ...],
    problem: str,
    remedy: str,
) -> None:
    refusal = _refusal(tmp_path, values, _two_rates(shape))
    assert problem in refusal.problem
    assert remedy in (refusal.remedy or "")


def test_values_are_read_from_the_command_line() -> None:
    assert parse_value("sr=16000") == ("sr", (16000,))
    assert parse_value("a=b=0.5, 1") == ("a=b", (0.5, 1))
    assert parse_value("flag=true") == ("flag", (True,))
    for text, problem in (
        ("=5", "names no input"),
        ("sr", "has no value"),
        ("sr=", "has no value"),
        ("sr=x", "'x' is not a number"),
    ):
        with pytest.raises(BuildError, match=problem) as caught:
            parse_value(text)
        assert caught.value.remedy == "--value sr=16000"


def test_values_are_read_from_edgepack_toml(tmp_path: Path) -> None:
    path = tmp_path / "edgepack.toml"
    path.write_text("[build.value]\nrate = 16000\ngain = [0.5, 1.0]\n")
    assert read_config(path).build.values == {"rate": (16000,), "gain": (0.5, 1.0)}


def test_the_declaration_of_a_fixed_input_counts_no_more(tmp_path: Path) -> None:
    source = _load(tmp_path)
    wanted = WantedInputs(
        specs=source.inputs, declarations={"rate": RawInput()}, fixed=source.fixed
    )
    check_declarations(wanted)
    with pytest.raises(BuildError, match="the model has no input 'rate'"):
        check_declarations(replace(wanted, fixed=()))


def _samples(folder: Path, source: SourceModel) -> OpenedSamples:
    return open_samples(str(folder), WantedInputs(specs=source.inputs, fixed=source.fixed), silent)


def test_samples_that_hold_the_fixed_value_are_read_without_it(tmp_path: Path) -> None:
    source, x = _load(tmp_path), np.ones((1, 4), np.float32)
    folder = tmp_path / "samples"
    folder.mkdir()
    np.savez(folder / "1.npz", x=x, rate=np.array(16000))
    np.savez(folder / "2.npz", x=x * 2)
    samples = _samples(folder, source).samples
    assert [sorted(feeds) for feeds in samples] == [["x"], ["x"]]


def test_a_sample_with_another_value_is_refused(tmp_path: Path) -> None:
    source, folder = _load(tmp_path), tmp_path / "samples"
    folder.mkdir()
    np.savez(folder / "1.npz", x=np.ones((1, 4), np.float32), rate=np.array(8000))
    with pytest.raises(BuildError) as caught:
        _samples(folder, source)
    assert caught.value.problem == "input 'rate' is fixed (rate=16000), and a sample holds 8000"
    assert "1.npz, input 'rate'" in (caught.value.found_in or "")


def test_samples_without_a_scalar_are_told_that_it_may_be_fixed(tmp_path: Path) -> None:
    source, folder = _load(tmp_path, {}), tmp_path / "samples"
    folder.mkdir()
    np.savez(folder / "1.npz", x=np.ones((1, 4), np.float32))
    with pytest.raises(BuildError, match="missing: rate") as caught:
        _samples(folder, source)
    assert (caught.value.remedy or "").endswith("never changes it, --value rate=…")


@pytest.mark.parametrize("with_rate", [True, False])
def test_onnx_test_data_is_read_with_and_without_the_fixed_input(
    tmp_path: Path, with_rate: bool
) -> None:
    source, x = _load(tmp_path), np.ones((1, 4), np.float32)
    folder = tmp_path / "samples" / "test_data_set_0"
    folder.mkdir(parents=True)
    arrays = [np.array(16000), x] if with_rate else [x]
    for number, array in enumerate(arrays):
        tensor = numpy_helper.from_array(array)
        (folder / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    (feeds,) = _samples(tmp_path / "samples", source).samples
    np.testing.assert_array_equal(feeds["x"], x)


def test_a_scalar_input_stays_a_scalar(tmp_path: Path) -> None:
    source, folder = _load(tmp_path, {}), tmp_path / "samples"
    folder.mkdir()
    np.savez(folder / "1.npz", x=np.ones((1, 4), np.float32), rate=np.array(8000))
    assert _samples(folder, source).samples.read(0)["rate"].shape == ()


def test_a_state_is_followed_in_a_model_with_a_fixed_input(tmp_path: Path) -> None:
    model = _two_rates()
    model.graph.input.append(_value("state", 1, [1, 4]))
    model.graph.output.append(_value("stateN", 1, [1, 4]))
    model.graph.node.append(_node("Add", ["state", "y"], ["stateN"], name="sum"))
    source, folder = _load(tmp_path, _RATE, model), tmp_path / "samples"
    folder.mkdir()
    for number in (1, 2):
        x, zero = np.full((1, 4), number, np.float32), np.zeros((1, 4), np.float32)
        np.savez(folder / f"{number}.npz", x=x, state=zero, rate=np.array(16000))
    opened = follow_states(
        _samples(folder, source), source, {}, folder=tmp_path / "states", progress=silent
    )
    assert [state.input for state in opened.samples.states] == ["state"]
    np.testing.assert_array_equal(opened.samples.read(1)["state"], np.full((1, 4), 2))
