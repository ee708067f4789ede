"""A maker whose candidates keep some nodes float, whatever is tried."""

from collections.abc import Collection

from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import Built, CandidateMaker, NodeCost, Raising
from edgepack.packager.tensors.sequence import Samples


class KeptFloat:
    """Makes what another maker makes, with these nodes float; the search does not see them.

    Args:
        maker: The other.
        kept: Names of the nodes.
    """

    def __init__(self, maker: CandidateMaker, kept: Collection[str]) -> None:
        self._maker = maker
        self._kept = frozenset(kept)

    @property
    def verb(self) -> str:
        """See `CandidateMaker`."""
        return self._maker.verb

    @property
    def methods(self) -> tuple[str, ...]:
        """See `CandidateMaker`."""
        return self._maker.methods

    @property
    def costly_methods(self) -> tuple[str, ...]:
        """See `CandidateMaker`."""
        return self._maker.costly_methods

    @property
    def names(self) -> tuple[str, ...]:
        """The other nodes that can be lowered, in graph order."""
        return tuple(name for name in self._maker.names if name not in self._kept)

    @property
    def raising(self) -> Raising | None:
        """How the other nodes get more bits."""
        raising = self._maker.raising
        if raising is None:
            return None
        return Raising(
            word=raising.word,
            names=tuple(name for name in raising.names if name not in self._kept),
            build=lambda method, float_nodes, raised: raising.build(
                method, self._with_kept(float_nodes), raised
            ),
            rank=lambda method, samples, progress: self._without_kept(
                raising.rank(method, samples, progress)
            ),
        )

    def build(self, method: str, float_nodes: Collection[str]) -> Built:
        """See `CandidateMaker`."""
        return self._maker.build(method, self._with_kept(float_nodes))

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """See `CandidateMaker`."""
        return self._without_kept(self._maker.rank(method, samples, progress))

    def _with_kept(self, float_nodes: Collection[str]) -> tuple[str, ...]:
        kept = [name for name in self._maker.names if name in self._kept]
        return tuple(dict.fromkeys((*float_nodes, *kept)))

    def _without_kept(self, costs: tuple[NodeCost, ...]) -> tuple[NodeCost, ...]:
        return tuple(cost for cost in costs if cost.name not in self._kept)
