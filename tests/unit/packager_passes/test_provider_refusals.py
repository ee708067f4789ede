"""What a provider refuses by words or by outputs is explained, or another is looked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.gates.provider_errors import explain_refusal
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.pipeline import provider_validation as provider_validation
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.inspection import Inspection, inspect
from edgepack.packager.runtime.trial import Trial, try_model
from tests.unit.packager_passes.products import prepare_products

_NO_MEMORY = (
    "QNNExecutionProvider cannot open the model: Failed to finalize QNN graph. Error: "
    "QNN_COMMON_ERROR_MEM_ALLOC: Memory allocation related error., Code: 1002"
)


@dataclass
class _FaultyProvider:
    """Runs models for real, and hands out outputs of quantized ones three times as large.

    Attributes:
        faults: How often it does so.
        runs: How often it ran.
    """

    faults: int
    runs: int = 0

    def __call__(self, model: Path, *args: Any, **settings: Any) -> Trial:
        trial = try_model(model, *args, **settings)
        self.runs += 1
        if self.runs > self.faults or read_source_quantization(onnx.load(model).graph) is None:
            return trial
        wrong = tuple(
            {name: value.astype(np.float32) * np.float32(3) for name, value in outputs.items()}
            for outputs in trial.outputs
        )
        return msgspec.structs.replace(trial, outputs=wrong)


Prepare = Callable[..., tuple[PreparedVariant, _FaultyProvider]]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Builds three products for `cpu`, on a provider that is at fault some times."""

    def build(
        faults: int, *, float_instead: tuple[str, ...] = (), allow_degraded: bool = False
    ) -> tuple[PreparedVariant, _FaultyProvider]:
        provider = _FaultyProvider(faults)
        monkeypatch.setattr(provider_validation, "try_model", provider)
        variant = prepare_products(
            tmp_path,
            count=3,
            max_float_share=1.0 if faults < 3 else 0.4,
            float_instead=float_instead,
            allow_degraded=allow_degraded,
        )
        return variant, provider

    return build


def _told(variant: PreparedVariant) -> list[str]:
    return [note for note in variant.notes if note.startswith("On its provider")]


@pytest.mark.parametrize("faults", [0, 1, 2])
def test_where_the_provider_is_off_the_search_goes_on_and_the_report_says_so(
    faults: int, prepare: Prepare
) -> None:
    variant, provider = prepare(faults)
    told = _told(variant)
    assert len(told) == faults
    assert provider.runs == faults + 1
    assert not variant.degraded
    if told:
        assert told[0].startswith(
            "On its provider minmax, 3 nodes quantized is off (CPUExecutionProvider computes "
            "output 'y' with an error of "
        )
        assert "the search went on for a candidate that leaves 60%" in told[0]
        best = next(attempt for attempt in variant.attempts if attempt.is_best)
        assert best.float_nodes


def test_it_goes_on_at_most_twice_and_then_the_provider_is_the_reason(prepare: Prepare) -> None:
    with pytest.raises(BuildError) as caught:
        prepare(99)
    assert "CPUExecutionProvider computes output 'y' with an error of" in caught.value.problem
    assert "exclude_ops" in (caught.value.remedy or "")
    variant, provider = prepare(99, allow_degraded=True)
    assert variant.degraded
    assert len(_told(variant)) == 2
    assert 2 <= provider.runs <= 3, "once more only where there is another candidate"


def test_where_no_candidate_gets_far_enough_one_on_half_the_way_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = _FaultyProvider(1)
    monkeypatch.setattr(provider_validation, "try_model", provider)
    variant = prepare_products(tmp_path, count=8, max_float_share=0.3)
    assert "None does: half of what the most accurate candidate gains is taken for enough." in (
        variant.notes
    )
    best = next(attempt for attempt in variant.attempts if attempt.is_best)
    float_nodes = {attempt.float_nodes for attempt in variant.attempts}
    assert (best.float_nodes, float_nodes) == (1, {0, 1, 2})


def test_where_it_is_off_to_the_end_the_float_model_may_be_published(prepare: Prepare) -> None:
    variant, _ = prepare(99, float_instead=("inaccurate",))
    assert (variant.precision, variant.degraded) == ("fp32", False)
    assert "The float model is published: its provider refuses every quantized one." in (
        variant.notes
    )


def _with(operator: str, folder: Path) -> Path:
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], "cell")], "g", [], [])
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    return folder / "model.onnx"


def _explained(problem: str, model: Path, profile: Profile) -> BuildError:
    error = BuildError(problem, found_in="model.onnx", remedy="use a smaller variant")
    return explain_refusal(error, model, profile)


def test_a_graph_beyond_a_chips_memory_is_explained_with_the_chip_and_the_suspects(
    tmp_path: Path,
) -> None:
    profile = load_profile("qnn-htp-v68")
    error = _explained(_NO_MEMORY, _with("LSTM", tmp_path), profile)
    assert error.problem.startswith(_NO_MEMORY)
    assert "the chip's own memory does not suffice for a part of the graph" in error.problem
    assert error.found_in == "model.onnx for htp_arch = 68, soc_model = 30"
    assert "a profile for a newer chip" in (error.remedy or "")
    assert (error.remedy or "").endswith("cell (LSTM)")
    plain = _explained(_NO_MEMORY, _with("Relu", tmp_path), profile)
    assert "products" not in (plain.remedy or "")


def test_what_reads_the_models_input_first_is_named_where_such_a_refusal_was_seen_with_it(
    tmp_path: Path,
) -> None:
    profile, node = load_profile("qnn-htp"), helper.make_node
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    nodes = [
        node("QuantizeLinear", ["x", "scale"], ["q"], "to"),
        node("DequantizeLinear", ["q", "scale"], ["d"], "from"),
        node("PRelu", ["d", "slope"], ["p"], "first"),
        node("Greater", ["x", "p"], ["g"], "compare"),
        node("PRelu", ["p", "slope"], ["y"], "later"),
    ]
    graph = helper.make_graph(nodes, "g", [value], [])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    error = _explained(_NO_MEMORY, tmp_path / "model.onnx", profile)
    assert (error.remedy or "").endswith("seen with there: first (PRelu), compare (Greater)")


def test_a_refusal_that_nothing_more_is_known_of_stays_in_the_providers_words(
    tmp_path: Path,
) -> None:
    error = _explained("it does not like it", tmp_path / "absent.onnx", load_profile("qnn-htp"))
    assert (error.problem, error.remedy) == ("it does not like it", "use a smaller variant")


def test_an_operator_that_the_refusal_names_is_what_to_export_without(tmp_path: Path) -> None:
    problem = "cannot open the model: Node 'norm_8' OpType:LRN with domain:com.ms.internal.nhwc …"
    error = _explained(problem, tmp_path / "absent.onnx", load_profile("qnn-htp"))
    assert error.problem == problem
    assert error.remedy == "export the model without LRN, or another profile for this device"


def test_what_takes_memory_is_over_before_the_provider_runs(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    run_there = provider_validation.ProviderValidation.run

    def told_run(*args: Any, **settings: Any) -> provider_validation.ProviderRun | None:
        order.append("run")
        return run_there(*args, **settings)

    def told_look(*args: Any, **settings: Any) -> Inspection:
        order.append("look")
        return inspect(*args, **settings)

    monkeypatch.setattr(provider_validation.ProviderValidation, "run", told_run)
    monkeypatch.setattr("edgepack.packager.pipeline.variant_validation.inspect", told_look)
    variant, _ = prepare(1)
    assert order == ["look", "run"] * 2
    assert variant.inspection is not None
    assert variant.inspection.layers, "of the candidate that was taken in the end"


def _is_quantized(model: Path, name: str) -> bool:
    """Whether a node reads its weights from integers."""
    graph = onnx.load(model).graph
    restored = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    return any(node.name == name and node.input[1] in restored for node in graph.node)


class _RefusingProvider:
    """Runs models for real, but for those in which some of the nodes are quantized.

    Attributes:
        runs: How often it was asked.
    """

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.runs = 0

    def __call__(self, model: Path, *args: Any, **settings: Any) -> Trial:
        self.runs += 1
        if any(_is_quantized(model, name) for name in self._refused):
            raise BuildError("it has no memory", found_in=model.name)
        return try_model(model, *args, **settings)


@pytest.mark.parametrize("refused", [("product_2",), ("product_0", "product_4")])
def test_nodes_for_which_a_provider_refuses_the_whole_graph_stay_float(
    refused: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_validation, "try_model", _RefusingProvider(*refused))
    variant = prepare_products(tmp_path, count=5)
    (told,) = [note for note in variant.notes if "stays float" in note or "stay float" in note]
    assert told.startswith(", ".join(refused))
    assert "CPUExecutionProvider refuses the whole graph" in told
    assert "(it has no memory)" in told
    assert " openings" in told
    path = variant.folder / variant.model_file
    left = [f"product_{i}" for i in range(5) if not _is_quantized(path, f"product_{i}")]
    assert left == list(refused)
    assert not variant.degraded


def test_what_would_leave_nothing_quantized_is_refused_with_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_validation, "try_model", _RefusingProvider("product_0"))
    with pytest.raises(BuildError) as caught:
        prepare_products(tmp_path, count=1)
    assert caught.value.problem.startswith("it has no memory: it refuses the graph up to product_0")
    assert caught.value.found_in == "model.onnx: product_0 (MatMul)"
    assert "export the model without product_0 (MatMul)" in (caught.value.remedy or "")


def test_a_provider_that_takes_nothing_at_all_blames_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **settings: Any) -> Trial:
        raise BuildError("the library does not load", remedy="install it")

    monkeypatch.setattr(provider_validation, "try_model", refuse)
    with pytest.raises(BuildError) as caught:
        prepare_products(tmp_path, count=3)
    assert (caught.value.problem, caught.value.remedy) == (
        "the library does not load",
        "install it",
    )


def test_what_takes_too_long_to_open_blames_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = _RefusingProvider("product_1")
    monkeypatch.setattr(provider_validation, "try_model", provider)
    monkeypatch.setattr("edgepack.packager.pipeline.unsupported_nodes._MOST_S_ONE", 0.0)
    with pytest.raises(BuildError) as caught:
        prepare_products(tmp_path, count=3)
    assert caught.value.problem == "it has no memory"
    assert provider.runs == 3, "the build's own, and one for each way of looking"
