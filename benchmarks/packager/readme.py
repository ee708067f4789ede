"""The part of README.md that is the benchmark's output."""

from collections.abc import Iterator, Sequence

from benchmarks.packager.calibration_table import count_calibrators
from benchmarks.packager.contestants import CONTESTANTS, NPU_TARGETS, TARGETS, is_told_the_metric
from benchmarks.packager.goals import count_goals
from benchmarks.packager.host import Host
from benchmarks.packager.records import Results
from benchmarks.packager.table import KEPT_SHARE, overview

BEGIN = "<!-- benchmarks: written by `make bench-packager` -->"
END = "<!-- /benchmarks -->"

_NONE_KNOWN = "0 of 0"

_TOLD = (
    "`told the metric` chooses by the task's own metric over labelled samples that no number here "
    "is of; all others get no more than inputs. "
)


def put_into(page: str, measured: Sequence[Results]) -> str:
    """The page with everything between the two marks replaced.

    Args:
        page: README.md.
        measured: What was measured, on one or more kinds of CPU, in the order to show it.

    Raises:
        ValueError: The marks are not there, each once and in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"README.md must hold {BEGIN} and, after it, {END}, each once")
    return f"{before}{BEGIN}\n\n{_block(measured)}\n\n{END}{after}"


def _block(measured: Sequence[Results]) -> str:
    pages = ", ".join(
        f"[{_describe(results.host)}](docs/benchmarks/{results.host.kind}.md)"
        for results in measured
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
    """E.g. `AMD EPYC, with VNNI`."""
    return f"{host.cpu}, {'with' if host.has_vnni else 'without'} VNNI"


def _tables(measured: Sequence[Results]) -> Iterator[str]:
    for target in TARGETS:
        shown = [results for results in measured if _rows(results, target)]
        if target in NPU_TARGETS:  # the most complete one tells all
            shown = sorted(shown, key=lambda results: -_rows(results, target))[:1]
        for results in shown:
            told = "" if target in NPU_TARGETS else f" ({_describe(results.host)})"
            yield overview(results, target, told=told)


def _rows(results: Results, target: str) -> int:
    of_target = {(entry.peer, entry.setting) for entry in CONTESTANTS if entry.target == target}
    subjects = [record.subject for record in results.records]
    return sum((subject.peer, subject.setting) in of_target for subject in subjects)


def _counts(measured: Sequence[Results]) -> str:
    """A Markdown table: each goal, and how often it held on each kind of CPU."""
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
