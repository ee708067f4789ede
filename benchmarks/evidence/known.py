"""Decisions of the code on cases whose right answer is known, by constants as they are and changed.

A case is a sound model, or a fault that was put into one. It costs a second at most, so that all
cases run with each `make evidence`.
"""

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.evidence.changing import FACTORS, changed
from benchmarks.evidence.constants import find_constants
from benchmarks.task_kinds.kind import Half

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "boxes": ("agent/edgepack/tasks/detections/layouts.py:MOST_FOUND",),
    "caches": ("packager/edgepack/packager/stages/cache_check.py:_MOST_LOST",),
    "distances": ("agent/edgepack/tasks/doubts/errors.py:_MOST_IN_DISTANCE",),
    "extremes": (
        "packager/edgepack/packager/samples/coverage.py:_LIKELY_SHARE",
        "packager/edgepack/packager/samples/coverage.py:_MOST_EXTREMES",
        "packager/edgepack/packager/samples/coverage.py:_MOST_SCALED",
        "packager/edgepack/packager/samples/coverage.py:TAIL",
    ),
    "masks": (
        "packager/edgepack/packager/stages/fixed_stages.py:_FLOAT_ERROR",
        "packager/edgepack/packager/stages/fixed_stages.py:_TOLERANCE",
    ),
    "parts": ("agent/edgepack/tasks/values/parts.py:_GAP",),
    "texts": (
        "agent/edgepack/tasks/text/decoding.py:_FEWEST_BLANKS",
        "agent/edgepack/tasks/text/decoding.py:_LONGEST_CHARACTER",
    ),
    "vectors": ("agent/edgepack/agent/generation/probing.py:_TIMES",),
}
"""Constants that decide a question, by the module of its cases."""

AS_IT_IS = "as it is"


class Case(NamedTuple):
    """A case.

    Attributes:
        name: The model, and its fault.
        half: `developed` for models that a constant was chosen beside.
        answer: The right answer.
        decide: Asks the code.
    """

    name: str
    half: Half
    answer: bool
    decide: Callable[[], bool]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to the cases of one half.

    Attributes:
        yes, no: How many cases have this right answer.
        denied: Cases that are wrongly answered with no.
        taken: Cases that are wrongly answered with yes.
    """

    yes: int
    no: int
    denied: int
    taken: int


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to a question, by the constants as they are and with each one changed.

    Attributes:
        question: The question.
        cases: Names of the cases, by half.
        tallies: By "as it is" or "KEY xFACTOR", then by half.
        wrong: Names of the wrongly answered cases, by the same keys.
    """

    question: str
    cases: dict[Half, tuple[str, ...]]
    tallies: dict[str, dict[Half, Tally]]
    wrong: dict[str, tuple[str, ...]]


def ask(name: str) -> Answered:
    """Answer a question for each of its cases.

    Args:
        name: Module of the cases.
    """
    logging.disable(logging.WARNING)  # of the quantizer
    module = importlib.import_module(f"benchmarks.evidence.cases.{name}")
    constants = [one for one in find_constants() if one.key in QUESTIONS[name]]
    with tempfile.TemporaryDirectory() as work:
        known: list[Case] = list(module.cases(Path(work)))
        answers = {AS_IT_IS: [case.decide() for case in known]}
        for constant in constants:
            for factor in FACTORS:
                with changed(constant, factor):
                    given = [case.decide() for case in known]
                answers[f"{constant.key} x{factor:g}"] = given
    return Answered(
        question=module.QUESTION,
        cases={
            half: tuple(case.name for case in known if case.half == half)
            for half in dict.fromkeys(case.half for case in known)
        },
        tallies={name: dict(_tally(known, given)) for name, given in answers.items()},
        wrong={
            name: tuple(
                case.name for case, yes in zip(known, given, strict=True) if yes != case.answer
            )
            for name, given in answers.items()
        },
    )


def _tally(cases: list[Case], given: list[bool]) -> Iterator[tuple[Half, Tally]]:
    for half in dict.fromkeys(case.half for case in cases):
        pairs = [
            (case.answer, yes) for case, yes in zip(cases, given, strict=True) if case.half == half
        ]
        yield (
            half,
            Tally(
                yes=sum(answer for answer, _ in pairs),
                no=sum(not answer for answer, _ in pairs),
                denied=sum(answer and not yes for answer, yes in pairs),
                taken=sum(yes and not answer for answer, yes in pairs),
            ),
        )
