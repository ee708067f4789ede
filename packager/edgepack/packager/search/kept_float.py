"""A candidate maker with some nodes always float."""

from collections.abc import Collection

from msgspec.structs import replace

from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateMaker,
    CandidateSpec,
    Measured,
    Ranked,
)
from edgepack.packager.tensors.sequence import Samples


class KeptFloat(CandidateMaker):
    """Makes the candidates of another maker, with these nodes float; the search does not see the
    nodes.

    Args:
        maker: The other.
        kept: Names of the nodes.
    """

    def __init__(self, maker: CandidateMaker, kept: Collection[str]) -> None:
        self._maker = maker
        self._kept = frozenset(kept)
        self.verb, self.methods = maker.verb, maker.methods
        self.costly_methods, self.names = maker.costly_methods, self._without_kept(maker.names)
        if more := maker.high_precision:
            self.high_precision = replace(more, names=self._without_kept(more.names))

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        kept = [name for name in self._maker.names if name in self._kept]
        together = tuple(dict.fromkeys((*spec.float_nodes, *kept)))
        return self._maker.build(replace(spec, float_nodes=together))

    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Rank nodes; see `CandidateMaker`. Kept nodes are ranked too, and then left out."""
        if spec.high_precision_nodes:
            together = (*spec.high_precision_nodes, *self._kept)
            spec = replace(spec, high_precision_nodes=together)
        ranked = self._maker.rank(spec, samples, progress, measured)
        return tuple(node for node in ranked if node.name not in self._kept)

    def _without_kept(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self._kept)
