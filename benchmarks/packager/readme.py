"""Texts on the measurements in README.md and the index of the benchmark pages."""

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.packager.calibration_table import count_calibrators
from benchmarks.packager.contestants import (
    CONTESTANTS,
    NPU_TARGETS,
    OWN,
    TARGETS,
    is_told_the_metric,
)
from benchmarks.packager.goals import count_goals
from benchmarks.packager.host import Host
from benchmarks.packager.records import Record, Results
from benchmarks.packager.table import KEPT_SHARE, is_kept, overview, speed

BEGIN = "<!-- benchmarks: written by `make bench-packager` -->"
END = "<!-- /benchmarks -->"

_NONE_KNOWN = "0 of 0"
_MISSING = "–"

_TITLES = {
    OWN: "edgepack",
    "ort": "ONNX Runtime",
    "optimum": "optimum-onnx",
    "neural_compressor": "onnx-neural-compressor",
    "nncf": "NNCF",
    "olive": "Olive",
    "quark": "Quark",
}
"""Peers in the order of the summary's columns."""

_TOLD = (
    "`told the metric` chooses by the task's own metric over labelled samples that no number here "
    "is of; all others get no more than inputs. "
)


def put_into(page: str, text: str) -> str:
    """Return the page with everything between the two marks replaced by the text.

    Raises:
        ValueError: The marks are not there, each once and in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"the page must hold {BEGIN} and, after it, {END}, each once")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def summary(measured: Sequence[Results]) -> str:
    """Return the part of README.md: a row for each target, a column for each tool.

    Args:
        measured: Measurements on some kinds of CPU, in display order.
    """
    fullest = {
        target: _fullest(shown, target)
        for target in TARGETS
        if (shown := [results for results in measured if _rows(results, target)])
    }
    cells = {
        (target, peer): _best(target, peer, results)
        for target, results in fullest.items()
        for peer in _TITLES
    }
    peers = [peer for peer in _TITLES if any(cells[target, peer] for target in fullest)]
    lines = [
        f"| target | {' | '.join(_TITLES[peer] for peer in peers)} |",
        f"| --- |{' --- |' * len(peers)}",
    ]
    for target in fullest:
        row = " | ".join(cells[target, peer] or _MISSING for peer in peers)
        lines.append(f"| {TARGETS[target]} | {row} |")
    about = (
        f"Real models that keep {KEPT_SHARE:.0%} of the float model's metric, by the best setting "
        "of each tool, with the same calibration data. In brackets: the median speed of these "
        "models, relative to the float model on a single thread of "
        f"{_describe(measured[0].host)}. Speeds of NPU models on a CPU are not comparable, and "
        "are not shown. All models, settings and kinds of CPU: "
        "[benchmarks](docs/benchmarks/README.md)."
    )
    return "\n".join([about, "", *lines])


def tables(measured: Sequence[Results]) -> str:
    """Return the part of the index: every setting of every tool on every model.

    Args:
        measured: See `summary`.
    """
    pages = ", ".join(
        f"[{_describe(results.host)}]({results.host.kind}.md)" for results in measured
    )
    is_any_told = any(
        is_told_the_metric(record.subject.setting)
        for results in measured
        for record in results.records
    )
    about = (
        "Real models, one and the same calibration data, every tool in an environment of its own: "
        "the task's metric, and in brackets the speed beside the float model on one thread. "
        f"**Bold** keeps {KEPT_SHARE:.0%} of the float model's metric; `refused` means that no "
        f"file was written. {_TOLD if is_any_told else ''}Accuracy for an NPU is that of exact "
        "integer arithmetic, whatever the CPU; speeds of NPU models on a CPU say nothing. "
        f"All numbers: {pages}."
    )
    goals = "What edgepack promises, and how often it held:"
    return "\n\n".join([about, *_tables(measured), goals, _counts(measured)])


def _describe(host: Host) -> str:
    """Return a machine as text, e.g. `AMD EPYC, with VNNI`."""
    return f"{host.cpu}, {'with' if host.has_vnni else 'without'} VNNI"


def _fullest(shown: Sequence[Results], target: str) -> Results:
    """Return the results with the most entries of a target; the first among equals."""
    return max(shown, key=lambda results: _rows(results, target))


def _best(target: str, peer: str, results: Results) -> str:
    """Return the best setting, e.g. `5 of 7 (1.68x)`: the setting that keeps the most, and the
    fastest among equals.
    """
    floats = {record.subject.task: record for record in results.float_records}
    found: list[tuple[int, float]] = []
    for entry in CONTESTANTS:
        if (entry.target, entry.peer) != (target, peer) or is_told_the_metric(entry.setting):
            continue
        records = [r for r in results.records if _identity(r) == (peer, entry.setting)]
        kept = [r for r in records if is_kept(r, floats[r.subject.task])]
        speeds = [speed(r, results.race_of(r.subject.task)) or 0.0 for r in kept]
        if records:
            found.append((len(kept), median(speeds) if speeds else 0.0))
    if not found:
        return ""
    count, typical = max(found)
    told = f" ({typical:.2f}x)" if count and target not in NPU_TARGETS else ""
    text = f"{count} of {len(floats)}{told}"
    return f"**{text}**" if peer == OWN else text


def _identity(record: Record) -> tuple[str, str]:
    return record.subject.peer, record.subject.setting


def _tables(measured: Sequence[Results]) -> Iterator[str]:
    for target in TARGETS:
        shown = [results for results in measured if _rows(results, target)]
        if target in NPU_TARGETS:  # the most complete one tells all
            shown = [_fullest(shown, target)] if shown else []
        for results in shown:
            told = "" if target in NPU_TARGETS else f" ({_describe(results.host)})"
            yield overview(results, target, told=told)


def _rows(results: Results, target: str) -> int:
    of_target = {(entry.peer, entry.setting) for entry in CONTESTANTS if entry.target == target}
    return sum(_identity(record) in of_target for record in results.records)


def _counts(measured: Sequence[Results]) -> str:
    """Return a Markdown table: each goal, and its count on each kind of CPU."""
    counts = [
        dict([*count_goals(results), *([count_calibrators(results)] * bool(results.calibrations))])
        for results in measured
    ]
    goals = list(dict.fromkeys(goal for entry in counts for goal in entry))
    lines = [
        f"| goal | {' | '.join(_describe(results.host) for results in measured)} |",
        f"| --- |{' --- |' * len(measured)}",
    ]
    for goal in goals:
        cells = [entry.get(goal, _NONE_KNOWN) for entry in counts]
        told = " | ".join("not measured" if cell == _NONE_KNOWN else cell for cell in cells)
        lines.append(f"| {goal} | {told} |")
    return "\n".join(lines)
