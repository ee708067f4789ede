"""What nodes keep and compute decides which are promoted, and which candidate is the best."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.workload import Workload, workloads
from edgepack.packager.profiles.pass_settings import QuantizeWeights
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import AccuracyBudget
from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import NodeSensitivity
from edgepack.packager.quantization.savings import (
    describe_share,
    lost_computing,
    lost_savings,
    most_float_nodes,
    promotion_order,
    worth_lowering,
)
from edgepack.packager.quantization.weight_only.candidate_maker import WeightOnlyCandidateMaker
from edgepack.packager.runtime.evaluator import Evaluator, Venue
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.search.candidate_measurer import CandidateMeasurer
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.journal import Journal, SearchConditions
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.search import search
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import make_model, parsed_model, weight
from tests.unit.packager_search.toys import ToyMaker, search_toy, toy_trials

_ROWS, _WIDTH = 1500, 64


def _encoder() -> onnx.ModelProto:
    """A table of 384 KB, then three matrices of 16 KB; 4 bits cost each of them as much."""
    node = helper.make_node
    nodes = [
        node("Cast", ["numbers"], ["ids"], name="cast", to=onnx.TensorProto.INT64),
        node("Gather", ["table", "ids"], ["v0"], name="lookup"),
    ]
    for number in range(3):
        output = "y" if number == 2 else f"v{number + 1}"
        nodes.append(node("MatMul", [f"v{number}", f"w{number}"], [output], name=f"m{number}"))
    weights = [weight(f"w{number}", _WIDTH, _WIDTH, seed=number) for number in range(3)]
    return make_model(
        nodes,
        {"numbers": [1, 8]},
        {"y": [1, 8, _WIDTH]},
        [weight("table", _ROWS, _WIDTH, seed=9), *weights],
    )


def _search_weights(folder: Path, high_precision_bits: int, share: float) -> SearchResult:
    model = _encoder()
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, _ROWS, (1, 8)).astype(np.float32) for _ in range(12)]
    samples = Samples(count=12, read=lambda index: {"numbers": ids[index]}, source="made")
    settings = QuantizeWeights(methods=("rtn",), high_precision_bits=high_precision_bits)  # type: ignore[arg-type]
    maker = WeightOnlyCandidateMaker(model, settings, samples, work_dir=folder, progress=silent)
    here = Venue(is_native=False, is_simulated=False, because="a test")
    budgets = {"any": AccuracyBudget(keep=1.0 - (1.0 - share) / 2.0)}
    float_run = ModelRunner(model, folder / "float.onnx").run
    measurer = CandidateMeasurer(
        maker,
        Evaluator(load_profile("cpu-int4"), here),
        CandidateJudge(float_run, samples, budgets, None),
        SearchConditions(limit=TimeLimit(None), journal=Journal(None)),
        folder,
    )
    return search(measurer, 0.5, silent, lambda run: False)


def _bits(path: Path) -> dict[str, int]:
    return {
        node.name: entry.i
        for node in onnx.load(path).graph.node
        for entry in node.attribute
        if entry.name == "bits"
    }


def test_a_large_table_keeps_four_bits_where_small_matrices_cost_as_much(tmp_path: Path) -> None:
    found = _search_weights(tmp_path, high_precision_bits=8, share=0.98)
    assert found.best.verdict.passed
    bits = _bits(found.best.path)
    assert bits["lookup"] == 4
    assert 8 in bits.values()
    assert found.best.float_nodes == ()
    assert "nodes 8-bit (" in found.best.words
    assert found.best.words.endswith("% of the weights' bytes)")
    assert found.best.measured.size_bytes < 100_000


def test_weights_return_to_float_only_when_eight_bits_are_not_enough(tmp_path: Path) -> None:
    found = _search_weights(tmp_path, high_precision_bits=8, share=0.99992)
    words = [attempt.what for attempt in found.attempts]
    assert any("4 of 4 nodes 8-bit (100% of the weights' bytes)" in what for what in words)
    assert found.best.float_nodes, "8 bits for all lose more than such a budget allows"
    assert "lookup" not in found.best.float_nodes
    share = r"[12] of 4 nodes float \(\d+% of the weights' bytes\)"
    assert re.fullmatch(f"rtn, {share}, [23] 8-bit", found.best.words)


def test_without_more_bits_the_matrices_stay_float_and_the_table_does_not(tmp_path: Path) -> None:
    found = _search_weights(tmp_path, high_precision_bits=0, share=0.98)
    assert found.best.verdict.passed
    assert set(found.best.float_nodes) <= {"m0", "m1", "m2"}
    assert found.attempts[-1].high_precision_nodes is None


def test_of_candidates_within_the_budget_the_one_that_saves_most_is_best(tmp_path: Path) -> None:
    errors = {"large": 0.12, "small": 0.11, "tiny": 0.01}
    loads = {"large": Workload(macs=900), "small": Workload(macs=90), "tiny": Workload(macs=10)}
    trials = toy_trials(ToyMaker(errors, {"plain": 1.0}, loads=loads), tmp_path / "work")
    trials.rank(spec("plain"))
    one = trials.add(spec("plain", ("large",)), "one large node")
    two = trials.add(spec("plain", ("small", "tiny")), "two that compute less")
    assert trials.is_on_target(one)
    assert trials.is_on_target(two)
    assert one.words == "plain, 1 of 3 nodes float (90% of the multiply-accumulates)"
    assert trials.best is two


def test_the_most_saving_nodes_are_lowered_again_first(tmp_path: Path) -> None:
    errors = {"a": 0.4, "b": 0.05, "c": 0.05, "d": 0.05, "e": 0.045, "f": 0.04}
    loads = {name: Workload(macs=1000 if name == "c" else 10) for name in errors}

    class _Misleading(ToyMaker):
        def rank(self, spec, samples, progress, measured=None):  # type: ignore[no-untyped-def]
            costs = {cost.name: cost for cost in super().rank(spec, samples, progress, measured)}
            return tuple(costs[name] for name in "bcdaef")

    found = search_toy(_Misleading(errors, {"plain": 1.0}, loads=loads), tmp_path / "work")
    again = [entry.because for entry in found.attempts if entry.because.startswith("without")]
    assert again[0] == "without c among the float nodes"
    assert "c" not in found.best.float_nodes
    assert "a" in found.best.float_nodes


def test_weights_are_promoted_by_noise_power_for_a_byte_and_computing_nodes_by_noise() -> None:
    table = NodeSensitivity(name="table", noise=0.06, weight_bytes=1000)
    matrix = NodeSensitivity(name="matrix", noise=0.03, weight_bytes=10)
    assert promotion_order((table, matrix)) == ("matrix", "table")
    large = NodeSensitivity(name="large", noise=0.06, weight_bytes=1000, macs=5000)
    small = NodeSensitivity(name="small", noise=0.03, weight_bytes=10, macs=50)
    assert promotion_order((large, small)) == ("large", "small")


def test_promoted_nodes_lose_their_bytes_or_what_they_compute_and_their_edges() -> None:
    weights = [
        NodeSensitivity(name=n, noise=0.1, weight_bytes=b) for n, b in (("a", 30), ("b", 10))
    ]
    assert lost_savings(weights, ("a",)) == pytest.approx(0.75)
    computing = [NodeSensitivity(name=n, noise=0.1, macs=m) for n, m in (("a", 30), ("b", 10))]
    assert lost_savings(computing, ("a",)) == pytest.approx((0.75 + 0.5) / 2)
    unknown = [NodeSensitivity(name=n, noise=0.1) for n in "abcd"]
    assert lost_savings(unknown, ("a",)) == pytest.approx(0.25)
    assert lost_savings((), ()) == 0.0
    assert describe_share(computing, ("a",)) == "75% of the multiply-accumulates"
    assert describe_share(weights, ("a", "b")) == "100% of the weights' bytes"
    assert describe_share(unknown, ("a",)) == ""


def test_workloads_are_counted_from_shapes() -> None:
    model = parsed_model(
        "(float[1,4,6,6] x) => (float[1,5] y) { "
        "[conv] c = Conv<kernel_shape=[3,3], group=2>(x, k) "
        "[back] d = ConvTranspose<kernel_shape=[2,2]>(c, t) [relu] r = Relu(d) "
        "[flat] f = Flatten(r) [gemm] h = Gemm<transB=1>(f, g) [product] y = MatMul(h, m) }",
        [
            weight("k", 8, 2, 3, 3),
            weight("t", 8, 3, 2, 2),
            weight("g", 7, 75),
            weight("m", 7, 5),
        ],
    )
    counted = workloads(index_graph(onnx.shape_inference.infer_shapes(model).graph))
    assert counted["conv"] == Workload(weight_bytes=4 * 144, macs=8 * 4 * 4 * 2 * 9)
    assert counted["back"] == Workload(weight_bytes=4 * 96, macs=8 * 4 * 4 * 3 * 4)
    assert counted["gemm"] == Workload(weight_bytes=4 * 525, macs=525)
    assert counted["product"] == Workload(weight_bytes=4 * 35, macs=35)
    assert counted["relu"] == Workload()
    assert counted["flat"] == Workload()


def test_each_step_of_an_lstm_multiplies_by_both_of_its_weights() -> None:
    model = parsed_model(
        "(float[4,1,5] x) => (float[4,1,1,3] y) { [lstm] y = LSTM<hidden_size=3>(x, w, r) }",
        [weight("w", 1, 12, 5), weight("r", 1, 12, 3)],
    )
    counted = workloads(index_graph(model.graph))
    assert counted["lstm"] == Workload(weight_bytes=4 * (60 + 36), macs=4 * (60 + 36))


def test_bytes_that_hardly_count_are_not_worth_a_candidate_and_every_computing_node_is() -> None:
    weights = [
        NodeSensitivity(name=n, noise=0.1, weight_bytes=b) for n, b in (("a", 999), ("b", 1))
    ]
    assert worth_lowering(weights, ("a", "b")) == ("a",)
    computing = [NodeSensitivity(name=n, noise=0.1, macs=m) for n, m in (("a", 999), ("b", 1))]
    assert worth_lowering(computing, ("a", "b")) == ("a", "b")
    quiet = [NodeSensitivity(name=n, noise=e, macs=10) for n, e in (("a", 0.1), ("b", 0.01))]
    assert worth_lowering(quiet, ("a", "b")) == ("b", "a")
    assert worth_lowering(quiet, ("b", "a")) == ("b", "a"), "whichever was promoted first"


def test_few_nodes_that_compute_little_may_stay_float_beside_the_share_of_all() -> None:
    names = ("scale", "bias", "last", "middle", "first")
    costs = [
        NodeSensitivity(name=name, noise=0.1, macs=macs)
        for name, macs in zip(names, (0, 0, 20, 80, 100), strict=True)
    ]
    assert most_float_nodes(costs, names, 0.25) == 3, "a tenth of what is computed"
    assert most_float_nodes(costs, names, 0.05) == 2
    assert most_float_nodes(costs, names, 0.9) == 4, "the share of the nodes, or all but one"
    assert most_float_nodes(costs, names, 1.0) == 5
    assert most_float_nodes(costs, names, 0.0) == 0, "the profile wants none"
    weights = [NodeSensitivity(name=name, noise=0.1, weight_bytes=1) for name in names]
    assert most_float_nodes(weights, names, 0.25) == 1, "of weights alone the bytes count"
    many = [NodeSensitivity(name=str(n), noise=0.1, macs=n) for n in range(100)]
    assert most_float_nodes(many, [node.name for node in many], 0.05) == 5


def test_all_computing_is_lost_where_nothing_is_made_cheaper() -> None:
    costs = [
        NodeSensitivity(name=name, noise=0.1, macs=macs) for name, macs in (("a", 30), ("b", 10))
    ]
    moving = [NodeSensitivity(name="c", noise=0.1)]
    assert lost_computing([*costs, *moving], ("b",)) == 0.25
    assert lost_computing([*costs, *moving], ("a", "b")) == 1.0, "c moves values only"
    assert lost_computing([*costs, *moving], ("c",)) == 0.0
    assert lost_computing(moving, ("c",)) == 1.0
    assert lost_computing([], ()) == 0.0, "no node had to be ranked, and none is promoted"
