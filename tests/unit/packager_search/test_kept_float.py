"""Nodes that stay float, whatever is tried: a search does not see them."""

import numpy as np
from msgspec.structs import replace

from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import CandidateSpec, NodeSensitivity
from edgepack.packager.search.kept_float import KeptFloat
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_search.toys import ToyMaker

_ERRORS = {"a": 0.1, "b": 0.2, "c": 0.3}
_SAMPLES = Samples(count=1, read=lambda index: {"x": np.zeros((1, 64), np.float32)}, source="toys")


class _Recording(ToyMaker):
    """Remembers by which specifications it built and ranked."""

    def __init__(self) -> None:
        super().__init__(_ERRORS, {"plain": 1.0}, sixteen=dict.fromkeys(_ERRORS, 0.5))
        self.specs: list[CandidateSpec] = []

    def build(self, spec):  # type: ignore[no-untyped-def]
        self.specs.append(spec)
        return super().build(spec)

    def rank(self, spec, samples, progress, measured=None):  # type: ignore[no-untyped-def]
        self.specs.append(spec)
        return super().rank(spec, samples, progress, measured)


def test_a_search_does_not_see_kept_nodes_and_every_candidate_has_them_float() -> None:
    maker = _Recording()
    kept = KeptFloat(maker, {"b"})
    assert kept.names == ("a", "c")
    assert kept.high_precision is not None
    assert kept.high_precision.names == ("a", "c")
    built = kept.build(spec("plain", ("c",), ("a",)))
    assert built.lowered == ("a",)
    assert maker.specs == [spec("plain", ("c", "b"), ("a",))]


def test_kept_nodes_are_measured_beside_the_others_and_left_out_of_the_ranking() -> None:
    maker = _Recording()
    kept = KeptFloat(maker, {"b"})
    lowered, wide = spec("plain"), spec("plain", (), kept.names)
    assert [node.name for node in kept.rank(lowered, _SAMPLES, silent)] == ["c", "a"]
    assert kept.rank(wide, _SAMPLES, silent) == (
        NodeSensitivity(name="c", noise=0.15),
        NodeSensitivity(name="a", noise=0.05),
    )
    assert maker.specs == [lowered, replace(wide, high_precision_nodes=("a", "c", "b"))]
