"""Results of `make evidence`, and their page."""

import msgspec

from benchmarks.evidence.constants import SECTIONS, read_list

_COLUMNS = ("changed", "moved", "lost", "rejected", "weak", "off", "refused", "missed")
_HEAD = """# Evidence for the numbers that decide

Written by `make evidence` from [`evidence.json`](evidence.json).
`benchmarks/evidence/constants.toml` lists each constant that can decide a verdict. `make check`
fails if a constant is not listed.

{counts}

## Effect of half and twice the value

ONNX Runtime quantized {kinds} small models in up to five ways. Their true share of the task's
accuracy is known from fresh data. With and without declared outputs these are {variants} verdicts.
Each is compared with the verdict by the constants as they are. *Developed* kinds are the models
that constants were chosen beside. *Independent* kinds are other models.

- *changed*: verdicts that differ (passed, weak, rejected, or golden outputs that hold).
- *moved*: reported shares that differ by more than .001.
- *lost*: variants that keep less than .99, pass, and are not weak.
- *rejected*: variants that keep .999 or more and do not pass.
- *weak*: variants that pass with a weak verdict.
- *off*: passed variants whose reported share differs from the true share by more than .01.
- *refused*: variants whose golden outputs do not hold their own limits on a device that fuses
  operators.
- *missed*: pairs of variants where the second one keeps .1 less, and its golden outputs hold the
  limits of the first one.

"""


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


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of one value of a constant, on each half of the kinds."""

    key: str
    value: str
    factor: float
    developed: Count
    independent: Count


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that `make evidence` measures.

    Attributes:
        variants: Of each kind: recipe and true share.
        effects: The constants as they are first, then each one with half and twice its value.
    """

    variants: dict[str, dict[str, float]]
    effects: tuple[Effect, ...]


def page(evidence: Evidence) -> str:
    """Return the page: a table with a row for each value.

    Args:
        evidence: What was measured.
    """
    listed = read_list()
    counts = "\n".join(
        f"- {len(listed.get(name, {}))} {name}: {words}." for name, words in SECTIONS.items()
    )
    first, *others = evidence.effects
    judged = first.developed.variants + first.independent.variants
    rows = [_row(first), *(_row(effect) for effect in others if _has_effect(effect))]
    silent = sorted({effect.key for effect in others} - {e.key for e in others if _has_effect(e)})
    text = _HEAD.format(counts=counts, kinds=len(evidence.variants), variants=judged)
    names = [f"{half}: {name}" for half in ("developed", "independent") for name in _COLUMNS]
    text += f"| {' | '.join(['constant', 'value', *names])} |\n|{' --- |' * (len(names) + 2)}\n"
    text += "".join(rows)
    if silent:
        text += (
            "\nNeither half nor twice the value changes a verdict or a share on these variants:\n\n"
        )
        text += "".join(f"- `{key}`\n" for key in silent)
    return text


def _has_effect(effect: Effect) -> bool:
    halves = (effect.developed, effect.independent)
    return any(half.changed or half.moved for half in halves)


def _row(effect: Effect) -> str:
    value = f"{effect.value} (x{effect.factor:g})" if effect.value else ""
    cells = [f"`{effect.key}`", value, *_cells(effect.developed), *_cells(effect.independent)]
    return f"| {' | '.join(cells)} |\n"


def _cells(count: Count) -> list[str]:
    return [str(getattr(count, name)) for name in _COLUMNS]
