"""A maker whose candidates lose a known amount for each node and method: the search's simulator."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.workload import Workload
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.progress import Progress, silent
from edgepack.packager.quantization.contract import Built, NodeCost, Raising
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.runtime.evaluator import Evaluator, Venue, open_plain
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.candidates import Demand, SearchResult
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.search import search
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.search.tries import Conditions, Tries
from edgepack.packager.tensors.sequence import Samples

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
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "toy", shapes[:1], shapes[1:], constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="toy"
    )


class ToyMaker:
    """Makes candidates of the toy model.

    Args:
        errors: What lowering each node costs.
        methods: By method a factor on the errors.
        costly: The same for methods that are tried later.
        raised: By node the share of its error that is left with 16 bits; None: none get them.
        loads: By node what it keeps and computes; None: nothing is known.
    """

    verb = "quantized"

    def __init__(
        self,
        errors: Mapping[str, float],
        methods: Mapping[str, float],
        costly: Mapping[str, float] | None = None,
        raised: Mapping[str, float] | None = None,
        loads: Mapping[str, Workload] | None = None,
    ) -> None:
        self._loads = loads or {}
        self._errors = errors
        self._factors = {**methods, **(costly or {})}
        self.methods = tuple(methods)
        self.costly_methods = tuple(costly or {})
        self.names = tuple(errors)
        self.raising: Raising | None = None
        if raised is not None:
            self._left = raised
            self.raising = Raising(
                word="16-bit",
                names=self.names,
                build=self._build_raised,
                rank=self._rank_raised,
            )
        self.built: list[tuple[str, tuple[str, ...]]] = []
        self.ranked: list[str] = []

    def build(self, method: str, float_nodes: Collection[str]) -> Built:
        self.built.append((method, tuple(float_nodes)))
        factor = self._factors[method]
        model = toy_model(
            {
                name: 0.0 if name in float_nodes else factor * error
                for name, error in self._errors.items()
            }
        )
        lowered = tuple(name for name in self.names if name not in float_nodes)
        return Built(model=model, lowered=lowered)

    def _build_raised(
        self, method: str, float_nodes: Collection[str], raised: Collection[str]
    ) -> Built:
        full = dict(self._errors)
        self._errors = {
            name: error * (self._left[name] if name in raised else 1.0)
            for name, error in full.items()
        }
        built = self.build(method, float_nodes)
        self._errors = full
        return built

    def _rank_raised(
        self, method: str, samples: Samples, progress: Progress
    ) -> tuple[NodeCost, ...]:
        self.ranked.append(f"{method}, raised")
        costs = [
            NodeCost(name=name, noise=error * self._left[name])
            for name, error in self._errors.items()
        ]
        return tuple(sorted(costs, key=lambda cost: (-cost.noise, cost.name)))

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        self.ranked.append(method)
        costs = [NodeCost(name=name, noise=error) for name, error in self._errors.items()]
        progress("ranking nodes", len(costs), len(costs))
        ranked = sorted(costs, key=lambda cost: (-cost.noise, cost.name))
        return with_workloads(ranked, self._loads)


def search_toy(
    maker: ToyMaker,
    folder: Path,
    *,
    journal: Journal | None = None,
    limit: TimeLimit | None = None,
    context: str = "toy",
    max_float_share: float = 1.0,
    demand: Demand | None = None,
    progress: Progress = silent,
    sample_count: int = 12,
    is_hopeless: Callable[[Run], bool] = lambda run: False,
) -> SearchResult:
    """Searches for a candidate that keeps 98 % of the variance."""
    folder.mkdir(parents=True)
    return search(
        maker,
        max_float_share,
        _evaluator(),
        _judge(maker, folder, sample_count),
        Conditions(
            limit=limit or TimeLimit(None),
            journal=journal or Journal(None),
            context=context,
            demand=demand or Demand(),
        ),
        work_dir=folder,
        progress=progress,
        is_hopeless=is_hopeless,
    )


def toy_tries(maker: ToyMaker, folder: Path) -> Tries:
    """No candidates yet, judged as `search_toy` does."""
    folder.mkdir(parents=True)
    return Tries(
        maker,
        _evaluator(),
        _judge(maker, folder),
        Conditions(limit=TimeLimit(None), journal=Journal(None)),
        work_dir=folder,
        progress=silent,
    )


def _evaluator() -> Evaluator:
    return Evaluator(
        load_profile("qnn-htp"), Venue(is_native=False, is_simulated=False, because="a toy")
    )


def _judge(maker: ToyMaker, folder: Path, count: int = 12) -> CandidateJudge:
    values = np.random.default_rng(0).normal(size=(count, 1, _WIDTH)).astype(np.float32)
    samples = Samples(count=count, read=lambda index: {"x": values[index]}, source="toys")
    gate = AccuracyGate(metric="explained_variance", explained_variance_min=0.98)
    return CandidateJudge(_float_run(maker, folder), samples, gate, None)


def _float_run(maker: ToyMaker, folder: Path) -> Run:
    path = folder / "float.onnx"
    save_model(toy_model(dict.fromkeys(maker.names, 0.0)), path)
    return open_plain(path)
