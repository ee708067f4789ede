"""Candidates that lose a known amount for each node and method: the search's simulator."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.workload import Workload
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import BuildStep, Progress, silent
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateMaker,
    CandidateSpec,
    HighPrecision,
    Measured,
    NodeSensitivity,
    QuantizationMethod,
)
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.runtime.evaluator import Evaluator, Venue, open_plain
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.candidate_measurer import CandidateMeasurer
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.journal import Journal, SearchConditions
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.search import search
from edgepack.packager.search.search_target import SearchTarget
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.declaring import declare

_WIDTH = 64


def toy_model(errors: Mapping[str, float]) -> onnx.ModelProto:
    """A chain of multiplications by one; each is off by its error, up and down in turn."""
    signs = np.where(np.arange(_WIDTH) % 2, 1.0, -1.0)
    nodes, constants = [], []
    value = "x"
    for number, (name, error) in enumerate(errors.items()):
        factors = (1.0 + error * np.roll(signs, number // 2)).astype(np.float32)
        constants.append(numpy_helper.from_array(factors, f"{name}/factors"))
        output = "y" if number == len(errors) - 1 else f"{name}/out"
        nodes.append(helper.make_node("Mul", [value, f"{name}/factors"], [output], name=name))
        value = output
    shapes = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, _WIDTH]) for name in "xy"
    ]
    graph = helper.make_graph(nodes, "toy", shapes[:1], shapes[1:], constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="toy"
    )


class ToyMaker(CandidateMaker):
    """Makes candidates of the toy model; in `built` is what was made, and in `ranked` by what.

    Args:
        errors: What lowering each node costs.
        methods: By method a factor on the errors.
        costly: The same for methods that are tried later.
        sixteen: By node the share of its error that is left with 16 bits; None: none get them.
        loads: By node what it keeps and computes; None: nothing is known.
    """

    def __init__(
        self,
        errors: Mapping[str, float],
        methods: Mapping[str, float],
        costly: Mapping[str, float] | None = None,
        sixteen: Mapping[str, float] | None = None,
        loads: Mapping[str, Workload] | None = None,
    ) -> None:
        self._loads = loads or {}
        self._errors = errors
        self._factors = {**methods, **(costly or {})}
        self._left = sixteen or {}
        self.methods = tuple(QuantizationMethod(base=name) for name in methods)
        self.costly_methods = tuple(QuantizationMethod(base=name) for name in costly or {})
        self.names = tuple(errors)
        if sixteen is not None:
            self.high_precision = HighPrecision(words="16-bit", names=self.names)
        self.built: list[tuple[str, tuple[str, ...]]] = []
        self.ranked: list[str] = []

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        self.built.append((spec.method.id, spec.float_nodes))
        factor, errors = self._factors[spec.method.id], self._errors_of(spec)
        lowered = tuple(name for name in self.names if name not in spec.float_nodes)
        model = toy_model(
            {name: factor * errors[name] if name in lowered else 0.0 for name in self.names}
        )
        return BuiltCandidate(model=model, lowered=lowered)

    def rank(
        self,
        spec: CandidateSpec,
        samples: Samples,
        progress: Progress,
        measured: Measured | None = None,
    ) -> tuple[NodeSensitivity, ...]:
        self.ranked.append(
            f"{spec.method.id} in high precision" if spec.high_precision_nodes else spec.method.id
        )
        nodes = [NodeSensitivity(name=n, noise=e) for n, e in self._errors_of(spec).items()]
        progress(BuildStep(what="ranking nodes", done=len(nodes), total=len(nodes)))
        ranked = sorted(nodes, key=lambda node: (-node.noise, node.name))
        return with_workloads(ranked, self._loads)

    def _errors_of(self, spec: CandidateSpec) -> dict[str, float]:
        return {
            name: error * (self._left[name] if name in spec.high_precision_nodes else 1.0)
            for name, error in self._errors.items()
        }


def search_toy(
    maker: ToyMaker,
    folder: Path,
    *,
    journal: Journal | None = None,
    limit: TimeLimit | None = None,
    context: str = "toy",
    max_float_share: float = 1.0,
    target: SearchTarget | None = None,
    progress: Progress = silent,
    sample_count: int = 12,
    is_hopeless: Callable[[Path], bool] = lambda path: False,
) -> SearchResult:
    """Search for a candidate that keeps 98 % of the variance."""
    folder.mkdir(parents=True)
    conditions = SearchConditions(
        limit=limit or TimeLimit(None),
        journal=journal or Journal(None),
        context=context,
        target=target or SearchTarget(),
    )
    judge = _judge(maker, folder, sample_count)
    measurer = CandidateMeasurer(maker, _evaluator(), judge, conditions, folder)
    return search(measurer, max_float_share, progress, is_hopeless)


def toy_trials(maker: ToyMaker, folder: Path) -> CandidateTrials:
    """No candidates yet, judged as `search_toy` does."""
    folder.mkdir(parents=True)
    conditions = SearchConditions(limit=TimeLimit(None), journal=Journal(None))
    judge = _judge(maker, folder)
    measurer = CandidateMeasurer(maker, _evaluator(), judge, conditions, folder)
    return CandidateTrials(measurer, silent)


def _evaluator() -> Evaluator:
    return Evaluator(
        load_profile("qnn-htp"), Venue(is_native=False, is_simulated=False, because="a toy")
    )


def _judge(maker: ToyMaker, folder: Path, count: int = 12) -> CandidateJudge:
    values = np.random.default_rng(0).normal(size=(count, 1, 2, _WIDTH)).astype(np.float32)
    samples = Samples(
        count=count,
        read=lambda index: {"x": values[index]},
        source="toys",
        description=declare(y="values"),
    )
    return CandidateJudge(_float_run(maker, folder), samples, {}, None)


def _float_run(maker: ToyMaker, folder: Path) -> Run:
    path = folder / "float.onnx"
    save_model(toy_model(dict.fromkeys(maker.names, 0.0)), path)
    return open_plain(path)
