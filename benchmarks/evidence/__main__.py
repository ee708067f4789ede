"""Measures the effect of each measured constant on verdicts: half and twice its value.

    python -m benchmarks.evidence --output docs/benchmarks/evidence

Verdicts on the variants of `benchmarks.evidence.recordings` are compared with the verdicts by the
unchanged constants. The developed kinds are the models used to choose constants, the independent
kinds are other models.
"""

import argparse
import importlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.evidence.constants import Constant, find_constants, read_list
from benchmarks.evidence.page import Count, Effect, Evidence, page
from benchmarks.evidence.recordings import Recording, Verdict, record
from benchmarks.task_kinds.kinds import KINDS
from edgepack.durable import write_file

FACTORS = (0.5, 2.0)
INTACT = 0.999
KEPT = 0.99
MOVED = 0.001
LOST = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=tuple(KINDS))
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the quantizer
    with tempfile.TemporaryDirectory(prefix="edgepack-evidence-") as folder:
        recordings: list[Recording] = []
        for name in given.kinds:
            recordings += record(KINDS[name], Path(folder) / name)
            truths = ", ".join(f"{one.recipe} {one.truth:.3f}" for one in recordings[-1].variants)
            print(f"{name}: {truths}", flush=True)
        evidence = measure(recordings)
    given.output.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(evidence), indent=1)
    write_file(given.output / "evidence.json", content)
    write_file(given.output / "README.md", page(evidence).encode())
    return 0


def measure(recordings: Sequence[Recording]) -> Evidence:
    """Evaluate all variants by the unchanged constants, then with each constant changed."""
    as_is = [tuple(recording.judge()) for recording in recordings]
    used = [_modules_of(recording) for recording in recordings]
    effects = [_effect("as it is", "", 1.0, recordings, as_is, as_is)]
    listed = read_list()
    wanted = {**listed.get("measured", {}), **listed.get("unproven", {})}
    for constant in find_constants():
        if constant.key not in wanted:
            continue
        for factor in FACTORS:
            changed = list(as_is)
            with _changed(constant, factor):
                for place, recording in enumerate(recordings):
                    if constant.module in used[place]:
                        changed[place] = tuple(recording.judge())
            value = str(_times(constant.value, factor))
            effects.append(_effect(constant.key, value, factor, recordings, as_is, changed))
            print(constant.key, value, msgspec.json.encode(effects[-1].independent), flush=True)
    truths = {
        recording.kind: {variant.recipe: round(variant.truth, 4) for variant in recording.variants}
        for recording in recordings
    }
    return Evidence(variants=truths, effects=tuple(effects))


@contextmanager
def _changed(constant: Constant, factor: float) -> Iterator[None]:
    """Give a constant another value, a public constant in each module that has imported it."""
    value = _times(constant.value, factor)
    own = importlib.import_module(constant.module)
    old = getattr(own, constant.name)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name == constant.module
        or (
            name.startswith("edgepack.")
            and not constant.name.startswith("_")
            and getattr(module, constant.name, None) is old
        )
    ]
    for module in holders:
        setattr(module, constant.name, value)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, constant.name, old)


def _times(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(_times(one, factor) for one in value)
    if isinstance(value, dict):
        return {key: _times(one, factor) for key, one in value.items()}
    if isinstance(value, int):
        return max(round(value * factor), 1)
    return value * factor if isinstance(value, float) else value


def _modules_of(recording: Recording) -> frozenset[str]:
    """Return the modules with functions that a verdict calls."""
    called: set[str] = set()
    sys.setprofile(lambda frame, event, argument: called.add(frame.f_globals.get("__name__", "")))
    try:
        tuple(recording.judge())
    finally:
        sys.setprofile(None)
    return frozenset(called)


def _effect(
    key: str,
    value: str,
    factor: float,
    recordings: Sequence[Recording],
    as_is: Sequence[tuple[Verdict, ...]],
    changed: Sequence[tuple[Verdict, ...]],
) -> Effect:
    counts = {}
    for half in ("developed", "independent"):
        rows = [
            (variant.truth, old, new, place, [one.truth for one in recording.variants])
            for recording, before, after in zip(recordings, as_is, changed, strict=True)
            if recording.half == half
            for place, (variant, old, new) in enumerate(
                zip(recording.variants, before, after, strict=True)
            )
        ]
        sure = [(truth, new) for truth, _, new, *_ in rows if new.passed and not new.weak]
        counts[half] = Count(
            variants=len(rows),
            moved=sum(abs(old.kept - new.kept) > MOVED for _, old, new, *_ in rows),
            changed=sum(
                (old.passed, old.weak, old.accepted) != (new.passed, new.weak, new.accepted)
                for _, old, new, *_ in rows
            ),
            lost=sum(truth < KEPT for truth, _ in sure),
            rejected=sum(truth >= INTACT and not new.passed for truth, _, new, *_ in rows),
            weak=sum(new.passed and new.weak for _, _, new, *_ in rows),
            refused=sum(not new.accepted[place] for _, _, new, place, _ in rows),
            missed=sum(
                is_accepted and other < truth - LOST
                for truth, _, new, _, truths in rows
                for is_accepted, other in zip(new.accepted, truths, strict=True)
            ),
            off=sum(new.passed and abs(truth - new.kept) > 0.01 for truth, _, new, *_ in rows),
        )
    return Effect(key=key, value=value, factor=factor, **counts)


if __name__ == "__main__":
    sys.exit(main())
