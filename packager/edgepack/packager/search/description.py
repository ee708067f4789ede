"""Description of a search in words."""

from edgepack.packager.gates.checks import Tried
from edgepack.packager.search.candidates import SearchResult

_NODES_SHOWN = 5


def describe_search(found: SearchResult | None) -> Tried | None:
    """Return the curve, a line each from the smallest to the largest, and the nodes to blame."""
    if found is None:
        return None
    curve = sorted(found.attempts, key=lambda attempt: (attempt.size_bytes, attempt.what))
    lines = ["the search; accuracy, size and settings of what it tried:"]
    several = len({attempt.metric for attempt in curve}) > 1
    lines += [
        f"{attempt.accuracy:8.4f}  {attempt.size_bytes:>14,} bytes  {attempt.what}"
        + (f"  ({attempt.metric})" if several else "")
        for attempt in curve
    ]
    if found.sensitive_nodes:
        nodes = ", ".join(
            f"{node.name} ({node.noise:.3f})" for node in found.sensitive_nodes[:_NODES_SHOWN]
        )
        lines.append(f"costliest nodes: {nodes}")
    return Tried(words="\n    ".join((*lines, *found.notes)), is_cut_short=found.is_cut_short)
