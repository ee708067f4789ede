"""Distance of two texts."""

from collections.abc import Hashable, Sequence


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the fewest replaced, inserted and deleted characters, or words, of two texts."""
    common = min(len(first), len(second))
    start = next((n for n in range(common) if first[n] != second[n]), common)
    first, second = first[start:], second[start:]
    common = min(len(first), len(second))
    end = next((n for n in range(common) if first[-1 - n] != second[-1 - n]), common)
    first, second = first[: len(first) - end], second[: len(second) - end]
    before = list(range(len(second) + 1))
    for row, mine in enumerate(first, start=1):
        now = [row]
        for column, other in enumerate(second, start=1):
            change = before[column - 1] + (mine != other)
            now.append(min(change, before[column] + 1, now[-1] + 1))
        before = now
    return before[-1]
