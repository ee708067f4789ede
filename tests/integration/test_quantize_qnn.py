"""A real model through Qualcomm's profiles, really run and compiled on the HTP simulator."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.agent.runtime.compatibility import find_unsupported
from edgepack.errors import BuildError
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit
from edgepack.tasks.description import NOTHING_KNOWN, ModelDescription, TaskOutputs
from tests.simulators.manifests import QNN, make_variant
from tests.unit.packager_passes.preparing import prepare

DIGITS = Path(__file__).parents[2] / "benchmarks" / "tasks" / "digits.onnx"


def _strokes(index: int) -> Feeds:
    """Return bright strokes on black, like the model's digits: float32 (1, 1, 32, 32), 0…1."""
    rng = np.random.default_rng(index)
    image = np.zeros((32, 32), dtype=np.float32)
    y, x = rng.integers(6, 26, 2)
    for _ in range(60):
        image[y - 1 : y + 2, x - 1 : x + 2] = rng.uniform(0.7, 1.0)
        dy, dx = rng.integers(-2, 3, 2)
        y, x = np.clip([y + dy, x + dx], 4, 27)
    return {"x": image[None, None]}


def part(start: int, count: int) -> Samples:
    """Return samples `start` … `start + count`."""
    return Samples(count=count, read=lambda i: _strokes(start + i), source="strokes")


def _prepare(
    profile: Profile, folder: Path, description: ModelDescription = NOTHING_KNOWN
) -> PreparedVariant:
    def described(start: int, count: int) -> Samples:
        return replace(part(start, count), description=description)

    split = SampleSplit(
        calibration=described(0, 30), search=described(30, 15), held_out=described(45, 20)
    )
    return prepare(DIGITS, profile, split, folder)


@pytest.mark.parametrize("name", ["qnn-htp", "qnn-htp-a8w8"])
def test_the_whole_graph_runs_on_the_simulated_npu(name: str, tmp_path: Path) -> None:
    variant = _prepare(load_profile(name), tmp_path)
    assert variant.placement.verified
    assert set(variant.placement.left) == {"QuantizeLinear", "DequantizeLinear"}
    assert sum(variant.placement.left.values()) == 2, "the graph's own input and output"
    assert variant.accuracy.value >= variant.accuracy.budget
    assert any("2 samples ran on the simulator" in note for note in variant.notes)
    assert variant.timing is not None
    assert variant.timing.latency_ms is None, "a simulator's time says nothing"


def test_16_bit_nodes_among_those_of_8_bits_leave_nothing_to_the_cpu(tmp_path: Path) -> None:
    demanding = {"any": {"keep": 0.9993}}
    vectors = TaskOutputs(task="embedding", outputs=("logits",), source="declared")
    variant = _prepare(
        resolve_profile("qnn-htp-a8w8", {"gates": {"accuracy": demanding}}),
        tmp_path,
        ModelDescription(parts=(vectors,)),
    )
    assert any(" nodes 16-bit" in note for note in variant.notes)
    assert set(variant.placement.left) == {"QuantizeLinear", "DequantizeLinear"}
    assert sum(variant.placement.left.values()) == 2, "the graph's own input and output"
    graph = onnx.load(variant.folder / variant.model_file).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types = {kinds[node.input[2]] for node in graph.node if node.op_type == "QuantizeLinear"}
    assert types == {onnx.TensorProto.UINT8, onnx.TensorProto.UINT16}


def test_a_profile_for_one_chip_is_compiled_for_it_and_runs(tmp_path: Path) -> None:
    variant = _prepare(load_profile("qnn-htp-v68"), tmp_path)
    nodes = onnx.load(variant.folder / variant.model_file, load_external_data=False).graph.node
    assert [node.op_type for node in nodes] == ["QuantizeLinear", "EPContext", "DequantizeLinear"]
    assert variant.toolchain.compiled_for.startswith("v68")
    assert set(variant.requires.drivers) == {"qnn-sdk"}, "an older SDK could not read the context"
    token = variant.compatibility_string
    assert token
    assert find_unsupported([make_variant(provider=QNN, device="npu", token=token)]) == {}
    assert variant.placement.verified


def test_a_placement_that_is_asked_for_and_not_reached_is_refused_with_the_operators(
    tmp_path: Path,
) -> None:
    strict = resolve_profile("qnn-htp", {"gates": {"placement_min": 1.0}})
    with pytest.raises(BuildError) as caught:
        _prepare(strict, tmp_path)
    message = str(caught.value)
    assert re.search(r"QNNExecutionProvider took \d+ of \d+ nodes \(98%\)", message)
    assert "left to the CPU: 1 DequantizeLinear, 1 QuantizeLinear" in message
