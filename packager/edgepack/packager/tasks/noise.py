"""Measure how far a candidate's outputs are off as one number, to order nodes and candidates by."""

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec
import numpy as np

from edgepack.tasks.arrays import Bools, Outputs, Tensor
from edgepack.tasks.classification.measure import same_decisions
from edgepack.tasks.description import NOTHING_KNOWN, UNKNOWN, ModelDescription
from edgepack.tasks.plain_error import relative_error
from edgepack.tasks.values.between_samples import variances_between
from edgepack.tasks.values.parts import find_parts


class NoiseMeter:
    """Measures how far outputs are off; what is to be known of the expected ones is found out once.

    Args:
        expected: The outputs to come near to, one dict a sample.
        description: What outputs mean.
    """

    def __init__(
        self, expected: Sequence[Outputs], description: ModelDescription = NOTHING_KNOWN
    ) -> None:
        self._expected = expected
        self._views = _views(expected, description)
        self._integers = () if self._views else description.evaluated(expected[0])

    def mean_noise(self, got: Sequence[Outputs]) -> float:
        """Return the mean nrmse of float outputs; of integers alone the share of wrong ones.

        Of an output that holds values of very different size each part counts as an output: of a
        detector's boxes and scores in one tensor, the boxes alone are seen otherwise.

        Args:
            got: A candidate's outputs, one dict a sample.
        """
        noises = [
            min(
                relative_error(view.values, [view.of(outputs) for outputs in got], view.read),
                _MOST_NOISE,
            )
            for view in self._views
        ]
        noises += [1.0 - self._share_right(name, got) for name in self._integers]
        return float(np.mean(noises))

    def _share_right(self, name: str, got: Sequence[Outputs]) -> float:
        pairs = zip(self._expected, got, strict=True)
        same = [same_decisions(want[name], have[name]) for want, have in pairs]
        return float(np.concatenate(same).mean())


_MOST_NOISE = 1e6


def in_telling_order(
    expected: Sequence[Outputs], description: ModelDescription = NOTHING_KNOWN
) -> tuple[int, ...]:
    """Order samples by how much the model says on them: its outputs differ most from their mean.

    A detector says nothing of a picture without objects, and what is off there is off by a large
    share of nothing.

    Args:
        expected: The float model's outputs, one dict a sample.
        description: What outputs mean.

    Returns:
        The indices of all samples, the most telling first.
    """
    told = np.zeros(len(expected))
    for view in _views(expected, description):
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


def _views(expected: Sequence[Outputs], description: ModelDescription) -> list[_View]:
    names = description.evaluated(expected[0])
    parts = find_parts(
        expected, [name for name in names if description.task_of(name) in ("values", UNKNOWN)]
    )
    divided = {part.output for part in parts}
    views = [
        _View(of=part.of, values=tuple(map(part.of, expected)), read=part.read_in(expected))
        for part in parts
    ]
    views += [
        _View(of=itemgetter(name), values=tuple(outputs[name] for outputs in expected))
        for name in names
        if expected[0][name].dtype.kind == "f" and name not in divided
    ]
    return views
