"""Verdicts on the variants of a kind, by the constants as they are and with each one changed."""

import logging
from collections.abc import Sequence

import msgspec

from benchmarks.evidence.changing import FACTORS, changed
from benchmarks.evidence.computed import COMPUTED
from benchmarks.evidence.constants import find_constants, read_list
from benchmarks.evidence.page import Count, Measured
from benchmarks.evidence.reads import find_lines, find_reads
from benchmarks.evidence.recordings import Recording, Verdict, record
from benchmarks.evidence.shipped import SHIPPED
from benchmarks.task_kinds.kinds import KINDS
from benchmarks.tasks.places import CACHE
from edgepack.decoding import decode_json
from edgepack.durable import write_file

INTACT = 0.999
KEPT = 0.99
MOVED = 0.001
LOST = 0.1

ALL = KINDS | COMPUTED | SHIPPED
"""In the table's order."""

_DOUBTS = "agent/edgepack/tasks/doubts/"
"""Wrong declarations are for its constants."""

_TOLERANCES = "packager/edgepack/packager/gates/tolerances.py"
"""Golden outputs are for its constants."""

_STORE = CACHE / "results" / "evidence"


def measure_kind(name: str, version: str) -> Measured:
    """Measure a kind, unless that was done before.

    Args:
        name: The kind.
        version: Of the sources; "" for any.
    """
    file = _STORE / f"{name}.json"
    if file.exists():
        known = decode_json(file.read_bytes(), Measured)
        if version in ("", known.version):
            return known
    logging.disable(logging.WARNING)  # of the quantizer
    recordings = record(ALL[name], CACHE / "evidence" / name)
    found = measure(recordings, version)
    for recording in recordings:
        recording.save()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, msgspec.json.encode(found))
    return found


def measure(recordings: Sequence[Recording], version: str = "") -> Measured:
    """Evaluate a kind's variants by the unchanged constants, then with each constant changed.

    Args:
        recordings: The recordings of one kind, with and without declarations.
        version: Of the sources.
    """
    as_is: list[tuple[Verdict, ...]] = []
    for recording in recordings:
        as_is.append(tuple(recording.judge(as_is[0] if recording.is_wrong else ())))
    right = [place for place, one in enumerate(recordings) if not one.is_wrong]
    listed = read_list()
    wanted = {**listed.get("measured", {}), **listed.get("unproven", {})}
    constants = [one for one in find_constants() if one.key in wanted]
    lines = find_lines(constants)
    reads = [
        frozenset(wanted) if one.is_wrong else find_reads(lambda one=one: tuple(one.judge()), lines)  # type: ignore[misc]
        for one in recordings
    ]
    effects = {}
    for constant in constants:
        if not any(constant.key in reads[place] for place in right):
            continue
        places = range(len(recordings)) if constant.file.startswith(_DOUBTS) else right
        for factor in FACTORS:
            anew = list(as_is)
            with changed(constant, factor):
                for place in places:
                    if constant.key in reads[place]:
                        known = () if constant.file == _TOLERANCES else as_is[place]
                        anew[place] = tuple(recordings[place].judge(known))
            effects[f"{constant.key} x{factor:g}"] = _count(recordings, as_is, anew)
    return Measured(
        kind=recordings[0].kind,
        half=recordings[0].half,
        version=version,
        variants={one.recipe: round(one.truth, 4) for one in recordings[0].variants},
        as_is=_count(recordings, as_is, as_is),
        effects=effects,
    )


def _count(
    recordings: Sequence[Recording],
    as_is: Sequence[tuple[Verdict, ...]],
    changed: Sequence[tuple[Verdict, ...]],
) -> Count:
    rows = [
        (variant.truth, old, new, place, [one.truth for one in recording.variants])
        for recording, before, after in zip(recordings, as_is, changed, strict=True)
        if not recording.is_wrong
        for place, (variant, old, new) in enumerate(
            zip(recording.variants, before, after, strict=True)
        )
    ]
    misled = [
        (variant.truth, new)
        for recording, after in zip(recordings, changed, strict=True)
        if recording.is_wrong
        for variant, new in zip(recording.variants, after, strict=True)
    ]
    sure = [(truth, new) for truth, _, new, *_ in rows if new.passed and not new.weak]
    return Count(
        variants=len(rows),
        moved=sum(abs(old.kept - new.kept) > MOVED for _, old, new, *_ in rows),
        changed=sum(
            (old.passed, old.weak, old.accepted) != (new.passed, new.weak, new.accepted)
            for before, after in zip(as_is, changed, strict=True)
            for old, new in zip(before, after, strict=True)
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
        misled=sum(truth < KEPT and new.passed and not new.weak for truth, new in misled),
        off=sum(new.passed and abs(truth - new.kept) > 0.01 for truth, _, new, *_ in rows),
    )
