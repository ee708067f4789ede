"""Candidates with 8-bit weights and dynamically quantized activations.

Nodes in the bodies of control flow are included. The calibration samples are not read.
"""

from collections.abc import Iterator
from copy import deepcopy

import onnx

from edgepack.packager.graph.edits import MICROSOFT, import_domain, refill
from edgepack.packager.graph.workload import Workload, weight_bytes
from edgepack.packager.profiles.pass_settings import QuantizeDynamic
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
)
from edgepack.packager.quantization.dynamic.nodes import DynamicWriter, is_lstm
from edgepack.packager.quantization.dynamic.scopes import Scope, drop_unread_constants, scopes
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.quantization.products import as_product


class DynamicCandidateMaker(OneAtATimeMaker[QuantizeDynamic]):
    """Candidate maker for a float model."""

    methods = (QuantizationMethod(base="dynamic"),)

    def __post_init__(self) -> None:
        # How often a body runs is not known, and steps of an LSTM neither: weights tell.
        self._loads = {
            scope.name(position): Workload(
                weight_bytes=weight_bytes(scope.graph.node[position], scope.constants)
            )
            for scope in scopes(self.model.graph)
            for position in self._lowerable(scope)
        }
        self.names = tuple(self._loads)

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        lowered = self._lowered(spec)
        result = deepcopy(self.model)
        # Inner bodies first: writing an outer graph copies its nodes, bodies included.
        for scope in reversed(list(scopes(result.graph))):
            self._write(scope, frozenset(lowered))
        drop_unread_constants(result)
        import_domain(result, MICROSOFT if lowered else "")
        return BuiltCandidate(model=result, lowered=lowered)

    def _lowerable(self, scope: Scope) -> Iterator[int]:
        for position, node in enumerate(scope.graph.node):
            if node.op_type in self.settings.ops and (
                is_lstm(node, scope.constants)
                or as_product(node, position, scope.constants) is not None
            ):
                yield position

    def _write(self, scope: Scope, lowered: frozenset[str]) -> None:
        writer = DynamicWriter(
            settings=self.settings,
            prefix=f"{scope.label}/" if scope.label else "",
            constants=scope.constants,
        )
        graph = scope.graph
        nodes: list[onnx.NodeProto] = []
        for position, node in enumerate(graph.node):
            name = scope.name(position)
            product = as_product(node, position, scope.constants)
            if name not in lowered:
                nodes.append(node)
            elif product is not None:
                nodes.extend(writer.product(name, product, node.output[0]))
            else:
                nodes.append(writer.lstm(name, node))
        if writer.made:
            refill(graph.node, nodes)
            graph.initializer.extend(writer.made)
