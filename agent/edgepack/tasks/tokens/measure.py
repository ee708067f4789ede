"""Measure a decoder by the token that it chooses next, step by step.

The build measures chains of steps too, in which errors grow through the cache (`agreement`).
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.classification.measure import compare_rows, one_miss, same_decisions
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.one_output import Compared, ValueTask

TOKENS_KEPT = Scale(metric="token_agreement", least=0.99)


def compare_tokens(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the tokens that the scores of one output choose; see `Compare`."""
    same = [same_decisions(want, have) for want, have in zip(expected, got, strict=True)]
    found = compare_rows(output, same)
    rows = found.measures[0]
    count = int(np.sum([row.size for row in same]))
    measure = Measure(
        scale=TOKENS_KEPT,
        value=rows.value,
        low=rows.low,
        output=output,
        may_differ=one_miss(count),
    )
    return Compared(measures=(measure,), losses=found.losses)


TOKENS = ValueTask("tokens", "the float model's tokens", compare_tokens)
