"""Makes candidates that compute in 16-bit floats, except where these would overflow or vanish.

Which tensors would is measured on the calibration samples. Inputs, outputs and tensors read by the
bodies of control flow stay 32-bit.

Writer of a model with 16-bit floats; a Cast for each tensor needed in both types.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.edits import drop_unread, refill
from edgepack.packager.graph.model_files import opsets_of
from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.graph.workload import workloads
from edgepack.packager.profiles.pass_settings import Float16
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    QuantizationMethod,
)
from edgepack.packager.quantization.float16.plan import Float16Plan, Float16Planner
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.runtime.float16_rounding import open_rounding
from edgepack.packager.runtime.model_run import Run


class Float16CandidateMaker(OneAtATimeMaker[Float16]):
    """Candidate maker for a float model."""

    verb = "converted"
    methods = (QuantizationMethod(base="float16"),)

    def __post_init__(self) -> None:
        model = self.model
        settings = self.settings
        self._index = index_graph(model.graph)
        self._planner = Float16Planner(
            self._index, opsets_of(model), settings.exclude_ops, settings.activation_max
        )
        tensors = self._planner.observable()
        calibration = Calibration(model, tensors, self.samples, self.work_dir, self.progress)
        self._observed = calibration.bounds
        self.names = tuple(self._planner.choices(self._observed))
        self._loads = workloads(self._index)

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        lowered = self._lowered(spec)
        plan = self._planner.plan(lowered, self._observed)
        model = Float16Writer(self.model, self._index, plan).write()
        return BuiltCandidate(model=model, lowered=lowered)

    def _open(self, path: Path) -> Run:
        return open_rounding(path)


class Float16Writer:
    """Makes a model in which the planned nodes compute in 16 bits.

    Inputs, outputs and tensors read by control flow's bodies keep their names and types.

    Args:
        model: The float model; not changed.
        index: Its graph, indexed.
        plan: The 16-bit parts.
    """

    def __init__(self, model: onnx.ModelProto, index: GraphIndex, plan: Float16Plan) -> None:
        self._model = model
        self._index = index
        self._plan = plan
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._taken = {*index.types, *index.producers, *index.initializers}
        self._fixed = {*index.outputs, *index.body_reads}
        self._float16: dict[str, str] = {}
        self._wide: dict[str, str] = {}

    def write(self) -> onnx.ModelProto:
        """Return a new model."""
        for position, original in enumerate(self._index.graph.node):
            node = deepcopy(original)
            halved = self._plan.nodes.get(position, frozenset())
            for i, name in enumerate(original.input):
                if node.op_type == "Cast" and name in self._plan.tensors:
                    node.input[i] = self._float16[name]
                elif self._index.is_float(name) and node.op_type != "Cast":
                    node.input[i] = self._narrow(name) if i in halved else self._widen(name)
            self._nodes.append(node)
            if position in self._plan.nodes:
                self._name_outputs(node)
        return self._assemble()

    def _name_outputs(self, node: onnx.NodeProto) -> None:
        """Name the outputs: a fixed name keeps the 32-bit values, other names get the 16-bit
        values.
        """
        for i, name in enumerate(list(node.output)):
            if name not in self._plan.tensors:
                continue
            if name in self._fixed:
                self._float16[name] = node.output[i] = self._fresh(f"{name}/float16")
                self._cast(self._float16[name], name, TensorProto.FLOAT)
                self._wide[name] = name
            else:
                self._float16[name] = name
        if node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to":
                    attribute.i = TensorProto.FLOAT16

    def _narrow(self, name: str) -> str:
        if name not in self._float16:
            self._float16[name] = self._fresh(f"{name}/float16")
            values = self._index.constant(name)
            if values is None:
                self._cast(name, self._float16[name], TensorProto.FLOAT16)
            else:
                narrow = np.asarray(values, dtype=np.float32).astype(np.float16)
                self._constants.append(numpy_helper.from_array(narrow, self._float16[name]))
        return self._float16[name]

    def _widen(self, name: str) -> str:
        if name not in self._plan.tensors:
            return name
        if name not in self._wide:
            self._wide[name] = self._fresh(f"{name}/float32")
            self._cast(self._float16[name], self._wide[name], TensorProto.FLOAT)
        return self._wide[name]

    def _cast(self, given: str, made: str, kind: int) -> None:
        name = self._fresh(f"{made}/cast")
        self._nodes.append(helper.make_node("Cast", [given], [made], name=name, to=kind))

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name = f"{name}_"
        self._taken.add(name)
        return name

    def _assemble(self) -> onnx.ModelProto:
        result = deepcopy(self._model)
        graph = result.graph
        refill(graph.node, self._nodes)
        drop_unread(graph)
        graph.initializer.extend(self._constants)
        refill(graph.value_info, self._infos())
        return result

    def _infos(self) -> Iterator[onnx.ValueInfoProto]:
        """Yield types and shapes of the inner tensors, including added tensors."""
        graph = self._index.graph
        known = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        for value in graph.value_info:
            yield _typed(value, value.name, self._float16.get(value.name) == value.name)
        for added, is_float16 in ((self._float16, True), (self._wide, False)):
            for name, other in added.items():
                if name in known and other != name:
                    yield _typed(known[name], other, is_float16)


def _typed(value: onnx.ValueInfoProto, name: str, is_float16: bool) -> onnx.ValueInfoProto:
    typed = deepcopy(value)
    typed.name = name
    if is_float16:
        typed.type.tensor_type.elem_type = TensorProto.FLOAT16
    return typed
