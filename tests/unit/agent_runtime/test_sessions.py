"""Sessions: real ONNX Runtime on the CPU, a tiny model, and everything that may not fit."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.opening import (
    GRAPH_OPTIMIZATION,
    MEMORY_PATTERN,
    ON_CPU,
    ProviderSettings,
    open_model_file,
    open_session,
)
from edgepack.agent.runtime.sessions import Session
from edgepack.errors import DeviceError
from tests.simulators.manifests import CPU, QNN, make_variant
from tests.unit.agent_runtime.examples import conv_model, make_inputs, save_variant


def _optimized(level: str) -> ProviderSettings:
    return msgspec.structs.replace(ON_CPU, session_options={GRAPH_OPTIMIZATION: level})


@pytest.fixture
def session(tmp_path: Path) -> Session:
    variant = make_variant()
    save_variant(tmp_path, variant)
    return open_session(tmp_path, variant, threads=1)


def test_a_variant_runs_and_tells_its_tensors_and_its_placement(session: Session) -> None:
    (outputs,) = (session.run(feeds) for feeds in make_inputs(1))
    assert outputs["y"].shape == (1, 4)
    assert outputs["y"].dtype == np.float32
    assert [(one.name, one.dtype, one.shape) for one in session.inputs] == [
        ("x", "float32", (1, 3, 8, 8))
    ]
    assert [one.name for one in session.outputs] == ["y"]
    assert session.provider == CPU
    assert session.placement.verified
    assert session.placement.taken == session.placement.total > 0
    assert session.placement.left == {}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "the model's inputs are x; given: none"),
        ({"z": np.zeros(1)}, "the model's inputs are x; given: z"),
        ({"x": np.zeros((1, 3, 8, 8))}, "input 'x' has dtype float64, expected float32"),
        (
            {"x": np.zeros((2, 3, 8, 8), np.float32)},
            r"input 'x' has shape \[2, 3, 8, 8\], expected \[1, 3, 8, 8\]",
        ),
        ({"x": [1.0]}, "input 'x' is a list, not a numpy array"),
    ],
)
def test_feeds_that_do_not_fit_are_told_apart(
    session: Session, feeds: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        session.run(feeds)


def test_a_free_dimension_takes_any_size(tmp_path: Path) -> None:
    model = conv_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "free.onnx")
    session = open_model_file(tmp_path / "free.onnx")
    assert session.inputs[0].shape == ("batch", 3, 8, 8)
    assert session.run({"x": np.zeros((5, 3, 8, 8), np.float32)})["y"].shape == (5, 4)


def test_inputs_whose_shared_size_differs_are_told_only_where_the_model_fails(
    tmp_path: Path,
) -> None:
    tensors = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 2])
        for name in ("a", "b", "y")
    }
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"])
    graph = onnx.helper.make_graph([node], "sum", [tensors["a"], tensors["b"]], [tensors["y"]])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "sum.onnx"
    )
    session = open_model_file(tmp_path / "sum.onnx")
    three = np.ones((3, 2), np.float32)
    assert session.run({"a": three, "b": three[:1]})["y"].shape == (3, 2), "the operator repeats b"
    with pytest.raises(ValueError, match="'batch' is 3 in input 'a' and 2 in input 'b'"):
        session.run({"a": three, "b": three[:2]})


def test_a_closed_session_says_so(session: Session) -> None:
    session.close()
    with pytest.raises(ValueError, match="the session is closed"):
        session.run(make_inputs(1)[0])


def test_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    onnx.save(
        conv_model(),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    assert open_model_file(tmp_path / "model.onnx").run(make_inputs(1)[0])
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(DeviceError, match="cannot open the model") as caught:
        open_model_file(tmp_path / "model.onnx")
    assert caught.value.remedy == "fetch or export the model's files again"


def test_what_is_no_model_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(DeviceError, match="the model file is missing"):
        open_model_file(path)
    path.write_bytes(b"not a model")
    with pytest.raises(DeviceError, match=f"{CPU} cannot open the model: ") as caught:
        open_model_file(path)
    assert caught.value.found_in == str(path)


def test_a_provider_that_is_not_here_is_an_error_and_not_the_cpu(tmp_path: Path) -> None:
    save_variant(tmp_path, make_variant())
    path = tmp_path / "model/cpu/model.onnx"
    with pytest.raises(DeviceError, match=r"VitisAIExecutionProvider is not in onnxruntime") as no:
        open_model_file(path, ProviderSettings(provider="VitisAIExecutionProvider", device="npu"))
    assert "Ryzen AI" in str(no.value.remedy)
    with pytest.raises(DeviceError, match="has no back end for device 'dsp'"):
        open_model_file(path, ProviderSettings(provider=QNN, device="dsp"))


def test_graph_optimization_is_a_setting_of_the_variant(tmp_path: Path) -> None:
    model = conv_model()
    model.graph.node[-1].output[0] = "flat"
    model.graph.node.append(onnx.helper.make_node("Identity", ["flat"], ["same"]))
    model.graph.node.append(onnx.helper.make_node("Relu", ["same"], ["y"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    plain = open_model_file(path, _optimized("disable_all"))
    fused = open_model_file(path, _optimized("all"))
    assert (plain.placement.total, fused.placement.total) == (6, 5)
    with pytest.raises(ValueError, match="is one of disable_all, basic, extended, all, not 'fast'"):
        open_model_file(path, _optimized("fast"))


def test_whether_memory_is_planned_is_a_setting_of_the_variant(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(conv_model(), path)
    for planned in (True, False):
        settings = msgspec.structs.replace(
            ON_CPU, session_options={MEMORY_PATTERN: str(int(planned))}
        )
        opened = open_model_file(path, settings)
        assert opened.run(make_inputs(1)[0])["y"].shape == (1, 4)
    odd = msgspec.structs.replace(ON_CPU, session_options={MEMORY_PATTERN: "False"})
    with pytest.raises(ValueError, match="enable_mem_pattern is one of 0, 1, not 'False'"):
        open_model_file(path, odd)
