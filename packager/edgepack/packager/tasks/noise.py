"""Noise of a candidate's outputs as a single number, to order nodes and candidates."""

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec
import numpy as np

from edgepack.tasks.arrays import Bools, Outputs, Tensor
from edgepack.tasks.classification.measure import same_decisions
from edgepack.tasks.description import IGNORED, NOTHING_KNOWN, OWN, UNKNOWN, ModelDescription
from edgepack.tasks.detections.layouts import suppressed
from edgepack.tasks.plain_error import relative_error
from edgepack.tasks.values.between_samples import variances_between
from edgepack.tasks.values.parts import find_parts


class NoiseMeter:
    """Measures the noise of outputs; facts about the expected outputs are found once.

    Args:
        expected: The reference outputs, a dict per sample.
        description: Meaning of the outputs.
    """

    def __init__(
        self, expected: Sequence[Outputs], description: ModelDescription = NOTHING_KNOWN
    ) -> None:
        self._expected = expected
        self._views = _views(expected, description)
        self._integers = () if self._views else description.evaluated(expected[0])

    def mean_noise(self, got: Sequence[Outputs]) -> float:
        """Return the mean nrmse of float outputs; for integers alone, the share of wrong integers.

        In an output with values of very different size each part counts as an output: otherwise
        only the boxes of a detector's boxes and scores in a single tensor would count.

        Args:
            got: A candidate's outputs, a dict per sample.
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


def order_by_information(
    expected: Sequence[Outputs], description: ModelDescription = NOTHING_KNOWN
) -> tuple[int, ...]:
    """Order samples by the distance of their outputs from the mean, the most distant first.

    A detector's outputs are nearly empty for a picture without objects, and an error there is a
    large share of nothing.

    Args:
        expected: The float model's outputs, a dict per sample.
        description: Meaning of the outputs.

    Returns:
        The indices of all samples, the most telling first.
    """
    told = np.zeros(len(expected))
    for view in _views(expected, description):
        variances = np.asarray(variances_between(view.values, view.read))
        told += variances / variances.sum()
    return tuple(sorted(range(len(expected)), key=lambda index: (-told[index], index)))


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """View of a float output, or of a part.

    Attributes:
        of: Picks the values from an inference's outputs.
        values: The float model's, an array a sample.
        read: Mask of counted values; None for all.
    """

    of: Callable[[Outputs], Tensor]
    values: tuple[Tensor, ...]
    read: Sequence[Bools] | None = None


def _comparable(outputs: Outputs, description: ModelDescription) -> tuple[str, ...]:
    """Return the outputs whose noise is measured: of boxes that a selection gives in any number
    and order, the floats that enter the selection.
    """
    names = description.evaluated(outputs)
    entering = [
        name
        for part in description.parts
        if part.task == IGNORED and part.source == "graph"
        for name in part.outputs
        if name in outputs
    ]
    if not entering:
        return names
    return (*entering, *(name for name in names if name not in suppressed(description)))


def _views(expected: Sequence[Outputs], description: ModelDescription) -> list[_View]:
    names = _comparable(expected[0], description)
    parts = find_parts(
        expected, [name for name in names if description.task_of(name) in ("values", UNKNOWN, OWN)]
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
