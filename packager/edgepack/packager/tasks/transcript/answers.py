"""Word error against the user's answers, of a variant and of the float model."""

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import LOSS, Agreement, Measure, Scale, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.intervals import independent, kept_low, share_low
from edgepack.tasks.transcript.measure import NAME, SCALES, TASK, count_edits
from edgepack.tasks.transcript.words import WordReader
from edgepack.text import counted

_LEAST_RIGHT = 0.5
"""Word accuracy of the float model from which answers decide: with most words wrong, as of a
translation with other right words, answers hardly tell a broken variant."""


def encode_answers(
    part: TaskOutputs,
    tokenizer: bytes,
    vocabulary: int,
    answers: Sequence[str],
    expected: Sequence[Outputs],
) -> tuple[Outputs, ...]:
    """Return answers as outputs of a model; several spaces are one.

    Args:
        part: The output of tokens, with its words.
        tokenizer: A `tokenizer.json`.
        vocabulary: Tokens of the model.
        answers: A text per sample.
        expected: The float model's outputs: they tell whether a text begins with a space.
    """
    known, reader = TextTokenizer(tokenizer, vocabulary), WordReader(part)
    texts = [reader.tokens_of(outputs[part.outputs[0]]) for outputs in expected]
    first = [text[0] for text in texts if text]
    behind = known.texts_behind_a_word(first) if first else {}
    spaced = [behind.get(token, "")[:1].isspace() for token in first]
    before = " " if sum(spaced) * 2 > len(spaced) else ""
    single = (re.sub(" {2,}", " ", answer.strip()) for answer in answers)
    return tuple(
        {part.outputs[0]: np.array([known.tokens_of(f"{before}{answer}", has_special=True)])}
        for answer in single
    )


def measure_with_answers(
    part: TaskOutputs,
    answers: Sequence[Outputs],
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
) -> Agreement:
    """Measure a variant's word error against the answers, beside the float model's.

    Args:
        part: The output of tokens, with its words.
        answers, expected, got: The user's answers, the float model's outputs and the variant's.

    Returns:
        The agreement: the variant may have `LOSS` more errors than the float model. Where the float
        model has most words of the answers wrong, its own texts decide.
    """
    compared = TASK.open(part, expected).measure(got)
    reader = WordReader(part)
    unit = reader.unit
    wanted, own, have = (
        [reader.read(one.get(part.outputs[0])) for one in outputs]
        for outputs in (answers, expected, got)
    )
    if not any(wanted):
        return replace(compared, doubt="the answers have no text")
    sizes = [float(max(len(text), 1)) for text in wanted]
    before, after = (
        [count_edits(*pair) for pair in zip(wanted, texts, strict=True)] for texts in (own, have)
    )
    more = [new - old for new, old in zip(after, before, strict=True)]
    best, value = 1.0 - sum(before) / sum(sizes), 1.0 - sum(after) / sum(sizes)
    count = counted(sum(map(len, wanted)), unit)
    if best < _LEAST_RIGHT:
        note = (
            f"The float model's {unit} error is {format_metric(1.0 - best)} against "
            f"{counted(len(answers), 'answer')} with {count}: they say little of a variant, so "
            "the float model's texts decide."
        )
        return replace(compared, notes=(note, *compared.notes))
    changed = [abs(one) for one in more]
    low_of_changed = share_low(1.0 - sum(changed) / sum(sizes), independent(changed, sizes))
    lost_at_most = 1.0 - min(kept_low(more, sizes), low_of_changed)
    words = (
        f"{unit} error {format_metric(1.0 - value)}, float model {format_metric(1.0 - best)} "
        f"against the answers (at most {format_metric(max(lost_at_most, 0.0))} more with "
        "95 % confidence)"
    )
    measure = Measure(
        scale=Scale(metric=SCALES[unit].metric, least=best - LOSS, best=best),
        value=value,
        low=best - lost_at_most,
        words=words,
        may_differ=one_miss(int(sum(sizes))),
    )
    note = f"{counted(len(answers), 'answer')} with {count}: {words}."
    return agree(
        NAME,
        [measure],
        np.maximum(np.array(more), 0.0) / np.array(sizes),
        words=words,
        notes=(note, *compared.notes),
        details=compared.details,
    )
