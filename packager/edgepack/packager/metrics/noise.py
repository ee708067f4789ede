"""How far a candidate's outputs are off, as one number to order nodes by, and where that shows."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import msgspec
import numpy as np

from edgepack.packager.metrics.distance import measure_distance, relative_error
from edgepack.packager.metrics.kinds import KINDS, OutputKind
from edgepack.packager.metrics.output_kinds import kinds_of_outputs
from edgepack.packager.metrics.parts import find_parts
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.tensors.meanings import NOTHING_KNOWN, Meaning
from edgepack.tasks.arrays import Bools, Outputs, Tensor
from edgepack.tasks.values.between_samples import variances_between


class NoiseMeter:
    """Measures how far outputs are off; what is to be known of the expected ones is found out once.

    Args:
        expected: The outputs to come near to, one dict a sample.
        meanings: What outputs mean, of those where it is known.
    """

    def __init__(
        self, expected: Sequence[Outputs], meanings: Mapping[str, Meaning] = NOTHING_KNOWN
    ) -> None:
        self._expected = expected
        self._views = _views(expected, meanings)
        self._integers = () if self._views else tuple(_kinds(expected, meanings))

    def mean_noise(self, got: Sequence[Outputs]) -> float:
        """Mean over the float outputs of their nrmse; of integers alone the share of wrong ones.

        Of an output that holds values of very different size each part counts as an output: of a
        detector's boxes and scores in one tensor, the boxes alone are seen otherwise.

        Args:
            got: A candidate's outputs, one dict a sample.
        """
        noises = [
            relative_error(view.values, [view.of(outputs) for outputs in got], view.read)
            for view in self._views
        ]
        noises += [1.0 - self._share_right(name, got) for name in self._integers]
        return float(np.mean(noises))

    def _share_right(self, name: str, got: Sequence[Outputs]) -> float:
        expected = [outputs[name] for outputs in self._expected]
        given = [outputs[name] for outputs in got]
        return measure_distance(name, OutputKind.EXACT, expected, given).row_agreement or 0.0


def in_telling_order(
    expected: Sequence[Outputs], meanings: Mapping[str, Meaning] = NOTHING_KNOWN
) -> tuple[int, ...]:
    """Samples by how much the model says on them: its outputs differ most from their mean there.

    A detector says nothing of a picture without objects, and what is off there is off by a large
    share of nothing.

    Args:
        expected: The float model's outputs, one dict a sample.
        meanings: What outputs mean, of those where it is known.

    Returns:
        The indices of all samples, the most telling first.
    """
    told = np.zeros(len(expected))
    for view in _views(expected, meanings):
        variances = np.asarray(variances_between(view.values, view.read))
        told += variances / variances.sum()
    return tuple(sorted(range(len(expected)), key=lambda index: (-told[index], index)))


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """One float output, or a part of one.

    Attributes:
        of: Picks it from an inference's outputs.
        values: The float model's, an array a sample.
        read: Which of them count; None for all.
    """

    of: Callable[[Outputs], Tensor]
    values: tuple[Tensor, ...]
    read: Sequence[Bools] | None = None


def _views(expected: Sequence[Outputs], meanings: Mapping[str, Meaning]) -> list[_View]:
    kinds = _kinds(expected, meanings)
    parts = find_parts(expected, kinds)
    divided = {part.output for part in parts}
    views = [
        _View(
            of=part.of,
            values=tuple(map(part.of, expected)),
            read=part.read_in(expected),
        )
        for part in parts
    ]
    views += [
        _View(of=itemgetter(name), values=tuple(outputs[name] for outputs in expected))
        for name, kind in kinds.items()
        if KINDS[kind].rows != "equal" and name not in divided
    ]
    return views


def _kinds(expected: Sequence[Outputs], meanings: Mapping[str, Meaning]) -> dict[str, OutputKind]:
    kinds = kinds_of_outputs(expected, AccuracyGate(), meanings)
    return {name: kind for name, kind in kinds.items() if kind is not OutputKind.SELECTED}
