"""Measure of a decoder by its next token, step by step.

The build measures chains of steps too, in which errors grow through the cache (`agreement`).
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, one_miss, same_decisions
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, sketch_decisions

TOKENS_KEPT = Scale(metric="token_agreement", least=0.99)


def compare_tokens(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the tokens that the scores of an output choose; see `Compare`."""
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


def sketch_tokens(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the share of each chosen token, and the confidence."""
    return replace(sketch_decisions(part, outputs), share_words="share of {} among tokens")


TASK = ValueTask(
    "tokens", "the float model's tokens", "tokens", compare_tokens, sketch_tokens, is_decision=True
)
