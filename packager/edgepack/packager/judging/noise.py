"""How far a candidate's outputs are off, as one number to order nodes and candidates by."""

from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.packager.judging.distance import OutputKind, measure_distance
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.judging.output_kinds import kinds_of_outputs
from edgepack.packager.judging.parts import find_parts
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.meanings import NOTHING_KNOWN, Meaning
from edgepack.packager.samples.sequence import Tensor


def mean_noise(
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
    meanings: Mapping[str, Meaning] = NOTHING_KNOWN,
) -> float:
    """Mean over the float outputs of their nrmse; where there is none, the share of wrong integers.

    Of an output that holds values of very different size each part counts as an output: of a
    detector's boxes and scores in one tensor, the boxes alone are seen otherwise.

    Args:
        expected, got: The outputs to come near to, and a candidate's, one dict a sample.
        meanings: What outputs mean, of those where it is known.
    """
    kinds = kinds_of_outputs(expected, AccuracyGate(), meanings)
    kinds = {name: kind for name, kind in kinds.items() if kind is not OutputKind.SELECTED}
    parts = find_parts(expected, kinds)
    divided = {part.output for part in parts}
    noises = [
        _nrmse(
            [part.of(outputs[part.output]) for outputs in expected],
            [part.of(outputs[part.output]) for outputs in got],
        )
        for part in parts
    ]
    noises += [
        _nrmse([outputs[name] for outputs in expected], [outputs[name] for outputs in got])
        for name, kind in kinds.items()
        if kind is not OutputKind.EXACT and name not in divided
    ]
    noises = noises or [
        1.0
        - (
            measure_distance(
                name,
                OutputKind.EXACT,
                [outputs[name] for outputs in expected],
                [outputs[name] for outputs in got],
            ).row_agreement
            or 0.0
        )
        for name in kinds
    ]
    return float(np.mean(noises))


def _nrmse(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    return measure_distance("", OutputKind.VALUES, expected, got).nrmse
