"""Results of `make evidence`, and their page."""

from collections.abc import Sequence

import msgspec

from benchmarks.evidence.constants import SECTIONS, read_list
from benchmarks.evidence.known import AS_IT_IS, Answered
from benchmarks.task_kinds.kind import Half

HALVES: tuple[Half, ...] = ("developed", "independent")
_COLUMNS = ("changed", "moved", "lost", "rejected", "weak", "off", "refused", "missed", "misled")
_HEAD = """# Evidence for the numbers that decide

Written by `make evidence` from [`evidence.json`](evidence.json).
`benchmarks/evidence/constants.toml` lists each constant that can decide a verdict. `make check`
fails if a constant is not listed.

{counts}

## Effect of half and twice the value

ONNX Runtime quantized {kinds} models in up to five ways: small models, and detectors, recognizers
of text and a decoder that Python packages ship. Their true share of the task's accuracy is known
from fresh data. With and without declared outputs these are {variants} verdicts.
Each is compared with the verdict by the constants as they are. *Developed* kinds are the models
that constants were chosen beside. *Independent* kinds are other models.

- *changed*: verdicts that differ (passed, weak, or rejected; of limits of golden outputs, also
  which golden outputs hold).
- *moved*: reported shares that differ by more than .001.
- *lost*: variants that keep less than .99, pass, and are not weak.
- *rejected*: variants that keep .999 or more and do not pass.
- *weak*: variants that pass with a weak verdict.
- *off*: passed variants whose reported share differs from the true share by more than .01.
- *refused*: variants whose golden outputs do not hold their own limits on a device that fuses
  operators.
- *missed*: pairs of variants where the second one keeps .1 less, and its golden outputs hold the
  limits of the first one.
- *misled*: as *lost*, if an output is declared as another task that its values fit. Only the
  constants of the cross-check are measured so.

"""
_READ = """
## Models of each constant

The verdicts on these models read the constant: models that it may have been chosen by, and others.

| constant | developed | independent |
| --- | --- | --- |
"""

_ANSWERS = """
## Questions whose answer is known

Models that are sound, and models with a fault that a script put into them. Constants were chosen
beside the developed models, and tested on the independent models.

- *denied*: cases that are answered with no, and yes is right.
- *taken*: cases that are answered with yes, and no is right.

"""

_LISTED = {"bound": "Bounds and their confidence", "unproven": "Constants without evidence"}
"""Sections that the page shows with their reasons."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts on the variants of one half of the kinds.

    Attributes:
        variants: How many variants were judged.
        changed: Verdicts that differ from those by the constants as they are.
        moved: Reported shares that differ by more than .001.
        lost: Variants that keep less than .99, pass and are not weak.
        rejected: Variants that keep .999 or more, and do not pass.
        weak: Variants that pass with a weak verdict.
        off: Passed variants whose reported share is off by more than .01.
        refused: Variants whose own golden outputs do not hold their limits.
        missed: Pairs where the second variant keeps .1 less, and holds the limits of the first one.
        misled: Variants that keep less than .99, pass and are not weak by a wrong declaration.
    """

    variants: int
    changed: int = 0
    moved: int = 0
    lost: int = 0
    rejected: int = 0
    weak: int = 0
    off: int = 0
    refused: int = 0
    missed: int = 0
    misled: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Measured verdicts on a kind of models.

    Attributes:
        kind, half: See `Kind`.
        version: Of the sources.
        variants: Recipe and true share of each variant.
        as_is: The verdicts by the constants as they are.
        effects: The verdicts by a changed constant, by "KEY xFACTOR". A constant that the verdicts
            do not read is left out.
    """

    kind: str
    half: Half
    version: str
    variants: dict[str, float]
    as_is: Count
    effects: dict[str, Count]

    def reads(self, key: str) -> bool:
        """Return True if the verdicts read a constant."""
        return any(name.rpartition(" ")[0] == key for name in self.effects)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that `make evidence` measures.

    Attributes:
        kinds: Verdicts, by kind of models.
        answers: Answers to questions, by module of the cases.
    """

    kinds: tuple[Measured, ...]
    answers: dict[str, Answered] = {}

    def of_half(self, half: Half) -> list[Measured]:
        """Return the kinds of one half."""
        return [one for one in self.kinds if one.half == half]


def page(evidence: Evidence) -> str:
    """Return the page: a table with a row for each value.

    Args:
        evidence: What was measured.
    """
    listed = read_list()
    counts = "\n".join(
        f"- {len(listed.get(name, {}))} {name}: {words}." for name, words in SECTIONS.items()
    )
    measured = {**listed.get("measured", {}), **listed.get("unproven", {})}
    ordered = sorted(
        name
        for name in {name for one in evidence.kinds for name in one.effects}
        if name.rpartition(" ")[0] in measured
    )
    halves = [evidence.of_half(half) for half in HALVES]
    rows = [_row("as it is", "", [[one.as_is for one in half] for half in halves])]
    silent = []
    for name in ordered:
        key, _, factor = name.rpartition(" ")
        counted = [[one.effects.get(name, one.as_is) for one in half] for half in halves]
        if any(count.changed or count.moved for half in counted for count in half):
            rows.append(_row(key, factor, counted))
        else:
            silent.append(name)
    read = [
        f"| `{key}` | "
        + " | ".join(
            ", ".join(one.kind for one in half if one.reads(key)) or "none" for half in halves
        )
        + " |\n"
        for key in dict.fromkeys(name.rpartition(" ")[0] for name in ordered)
    ]
    text = _HEAD.format(
        counts=counts,
        kinds=len(evidence.kinds),
        variants=sum(one.as_is.variants for one in evidence.kinds),
    )
    heads = [f"{half}: {name}" for half in HALVES for name in _COLUMNS]
    text += f"| {' | '.join(['constant', 'value', *heads])} |\n|{' --- |' * (len(heads) + 2)}\n"
    text += "".join(rows)
    text += _READ + "".join(read)
    if silent:
        text += "\nThese values change no verdict and no share:\n\n"
        text += "".join(f"- `{name}`\n" for name in silent)
    text += _ANSWERS if evidence.answers else ""
    text += "\n".join(_describe(one) for one in evidence.answers.values())
    for section, title in _LISTED.items():
        reasons = listed.get(section, {})
        text += f"\n## {title}\n\n" if reasons else ""
        text += "".join(f"- `{key}`: {reason}.\n" for key, reason in reasons.items())
    return text


def _row(key: str, factor: str, halves: Sequence[Sequence[Count]]) -> str:
    sums = [sum(getattr(one, name) for one in half) for half in halves for name in _COLUMNS]
    return f"| {' | '.join([f'`{key}`', factor, *map(str, sums)])} |\n"


def _list_models(cases: Sequence[str]) -> str:
    """Return the models of cases, whose names may go on with a comma and the variant."""
    return ", ".join(dict.fromkeys(name.partition(", ")[0] for name in cases))


def _describe(answered: Answered) -> str:
    """Return the models of a question, its table, and its wrongly answered cases."""
    halves = [half for half in HALVES if half in answered.cases]
    models = (
        f"{half.capitalize()} models: {_list_models(answered.cases[half])}." for half in halves
    )
    columns = ("yes is right", "denied", "no is right", "taken")
    heads = ["constant", "value", *(f"{half}: {name}" for half in halves for name in columns)]
    text = f"### {answered.question}\n\n" + "\n".join(models)
    text += f"\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n"
    for name, tallies in answered.tallies.items():
        key, _, factor = (name, "", "") if name == AS_IT_IS else name.rpartition(" ")
        counts = [
            str(count)
            for half in halves
            for one in (tallies[half],)
            for count in (one.yes, one.denied, one.no, one.taken)
        ]
        text += f"| {' | '.join([f'`{key}`', factor, *counts])} |\n"
    wrong = [
        f"- `{name}`: {'; '.join(cases)}.\n" for name, cases in answered.wrong.items() if cases
    ]
    return f"{text}\nAnswered wrongly:\n\n{''.join(wrong)}" if wrong else text
