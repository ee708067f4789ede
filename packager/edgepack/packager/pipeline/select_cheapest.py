"""Selection of a single combination of a search, with all attempts.

Among combinations within their budget the cheapest wins: the fastest if the provider is here, then
the smallest, then the first named; if the profile prefers size, the smallest first. If none is
within, the nearest to its budget.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.pipeline.selection import SearchedCombination
from edgepack.packager.search.attempts import Attempt

_SAME_LATENCY = 1.1
_SAME_SIZE = 1.01
"""Within these factors two models cost the same: medians vary, and metadata takes some bytes."""


def select_cheapest(searched: Sequence[SearchedCombination]) -> SearchedCombination:
    """Select a combination; see above."""
    within = [entry for entry in searched if entry.selection.holds]
    if not within:
        best = searched[0]
        for entry in searched[1:]:
            if _verdict(entry).beats(_verdict(best)):
                best = entry
        return best
    if within[0].profile.gates.prefer == "size":
        return _fastest(_smallest(within))[0]
    return _smallest(_fastest(within))[0]


def _fastest(entries: Sequence[SearchedCombination]) -> list[SearchedCombination]:
    """Return the fastest combinations, in order; all if any time is unknown."""
    latencies = [entry.selection.latency_ms for entry in entries]
    known = [latency for latency in latencies if latency is not None]
    if len(known) < len(entries):
        return list(entries)
    return [
        entry
        for entry, latency in zip(entries, known, strict=True)
        if latency <= _SAME_LATENCY * min(known)
    ]


def _smallest(entries: Sequence[SearchedCombination]) -> list[SearchedCombination]:
    least = min(entry.size_bytes for entry in entries)
    return [entry for entry in entries if entry.size_bytes <= _SAME_SIZE * least]


def _verdict(entry: SearchedCombination) -> Verdict:
    """Return the verdict on a combination that does not hold, which is always a lowered model's."""
    if entry.selection.found is None:
        raise ValueError("nothing was searched, so nothing can miss the budget")
    return entry.selection.found.best.verdict


def with_whole_search(
    best: SearchedCombination, searched: Sequence[SearchedCombination], skipped: Sequence[str]
) -> SearchedCombination:
    """Return the kept combination, with the attempts of all combinations."""
    if len(searched) + len(skipped) < 2:
        return best
    note = (
        f"Of {len(searched) + len(skipped)} combinations, {best.combination.words} was taken: "
        + (
            "the cheapest that holds the budget"
            if best.selection.holds
            else "none holds the budget"
        )
        + "".join(f"; {words}" for words in skipped)
        + "."
    )
    found = best.selection.found
    if found is not None:
        found = replace(found, attempts=_all_attempts(searched))
    latencies_ms = {
        key: taken for entry in searched for key, taken in entry.selection.latencies_ms.items()
    }
    selection = replace(best.selection, found=found, latencies_ms=latencies_ms)
    return replace(best, selection=selection, notes=(note,))


def _all_attempts(searched: Sequence[SearchedCombination]) -> tuple[Attempt, ...]:
    return tuple(
        attempt
        for entry in searched
        if entry.selection.found is not None
        for attempt in entry.selection.found.attempts
    )
