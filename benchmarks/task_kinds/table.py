"""The table of kinds of tasks and its summary, for the terminal and as a Markdown page."""

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.task_kinds.cells import PROFILES, Cell

LOST = 0.99
"""A variant that retains less of its task has lost accuracy."""

NEAR = 0.01
"""A prediction that is farther from the truth is wrong."""

INTACT = 0.999
"""A variant that retains this much must not be rejected."""

_PAGE = """\
# Kinds of tasks: the accuracy that builds report, and the truth

Written by `make bench-tasks` from [`tasks.json`](tasks.json), which has every cell. Each task is a
small model that the benchmark trains with numpy in seconds. Its data are drawn, so fresh data show
how much of the task's own metric a variant retains. No build sees these data.

Half of the tasks were made beside the code that they test (*developed*), half without sight of its
constants and thresholds (*independent*). Their author had read the user's documents.

- `.998→.997`: the build reports that .998 of the task's accuracy is retained; .997 is true.
- `!`: published, less than {lost} is true, and the build does not call its verdict weak.
- `?`: published, and the reported and the true value differ by more than {near}.
- `w`: the build calls its verdict weak.
- `R→1.000`: rejected; the best candidate (`--allow-degraded`) retains 1.000.
- `float`: the float model is published.
- `failed`, `time`: the build ended with another error, or at its time limit.

Builds prefer size (`--prefer size`): speed says little of models that take microseconds. Variants
for `cpu` and `openvino-cpu` run as on a device, on this machine. Variants for NPUs run with exact
integer products. Seconds are those of the builds beside other work of the machine.

`before` cells were measured before each output was evaluated by its task, with the declarations of
that time ([`before.json`](before.json)). `after` cells are this release's. They were measured by
{versions}.

Two things changed with the evaluator. Declarations use words that did not exist then: `threshold`,
`tolerance`, and `probabilities` of single values. The truth of `embedding`, `page_detector`,
`arm_pose` and `landmarks` is measured on 2 to 18 times as many fresh samples, as .01 was within
its sampling error.

## Summary

{summary}

## Without declarations

{plain}

## With declarations

`[outputs]` in edgepack.toml states what each output means.

{declared}

## Cells that miss the goals

{missed}

## Tasks

{tasks}
"""


def page(cells: Sequence[Cell], before: Sequence[Cell] = ()) -> str:
    """Return the Markdown page.

    Args:
        cells: The measured cells.
        before: The cells of an earlier release, to compare with.
    """
    plain, declared = (
        table(
            [c for c in cells if c.is_declared == flag],
            [c for c in before if c.is_declared == flag],
        )
        for flag in (False, True)
    )
    return _PAGE.format(
        versions=_versions(cells),
        lost=_short(LOST),
        near=_short(NEAR),
        summary=_markdown(summary(cells, before)),
        plain=_markdown(plain),
        declared=_markdown(declared),
        tasks=_markdown(_tasks(cells)),
        missed="\n".join(f"- {line}" for line in missed(cells)) or "None.",
    )


def _versions(cells: Sequence[Cell]) -> str:
    """Return the measured sources, each with its number of cells."""
    counts = Counter(cell.version for cell in cells)
    return ", ".join(f"{version} ({count} cells)" for version, count in counts.most_common())


def terminal(cells: Sequence[Cell], before: Sequence[Cell] = ()) -> str:
    """Return both tables and the summary in columns; see `page`."""
    parts = []
    for is_declared, title in ((False, "without declarations"), (True, "with declarations")):
        chosen = [cell for cell in cells if cell.is_declared == is_declared]
        if chosen:
            parts.append(f"{title}\n{_columns(table(chosen))}")
    parts.append(_columns(summary(cells, before)))
    parts.append("\n".join(missed(cells)))
    return "\n\n".join(parts)


def table(cells: Sequence[Cell], before: Sequence[Cell] = ()) -> list[list[str]]:
    """Return a head and a row for each task; cells of an earlier release are in parentheses."""
    found = [["task", "half", "float model", *PROFILES, "seconds"]]
    earlier = {(cell.kind, cell.profile): f" ({describe(cell)})" for cell in before}
    for name in dict.fromkeys(cell.kind for cell in cells):
        of_kind = {cell.profile: cell for cell in cells if cell.kind == name}
        first = next(iter(of_kind.values()))
        metrics = [cell.float_metric for cell in of_kind.values() if cell.float_metric is not None]
        value = f"{first.task_metric} {metrics[0]:.3g}" if metrics else first.task_metric
        texts = [
            describe(of_kind[profile]) + earlier.get((name, profile), "")
            if profile in of_kind
            else ""
            for profile in PROFILES
        ]
        seconds = f"{sum(cell.build_s for cell in of_kind.values()):.0f}"
        found.append([name, first.half, value, *texts, seconds])
    return found


def _tasks(cells: Sequence[Cell]) -> list[list[str]]:
    """Return a head, and the output of each task's model."""
    of_kind = {cell.kind: cell for cell in cells}
    rows = [[cell.kind, cell.half, cell.what, cell.task_metric] for cell in of_kind.values()]
    return [["task", "half", "the model returns", "the task's metric"], *rows]


def describe(cell: Cell) -> str:
    """Return a cell in a few characters; see the page's legend."""
    weak = " w" if cell.weak else ""
    match cell.outcome:
        case "failed":
            return "failed"
        case "over the time limit":
            return "time"
        case "float":
            return f"float{weak}"
        case "rejected":
            return f"R→{_share(cell.truth)}{weak}"
    marks = "!" * is_lost_silently(cell) + "?" * is_wrong(cell)
    return f"{_share(cell.reported)}→{_share(cell.truth)}{marks}{weak}"


def is_lost_silently(cell: Cell) -> bool:
    """Return whether a published variant lost accuracy without a weak verdict."""
    is_lost = cell.truth is not None and cell.truth < LOST
    return cell.outcome in ("quantized", "float") and is_lost and not cell.weak


def is_wrong(cell: Cell) -> bool:
    """Return whether a published quantized variant's prediction is far from the truth."""
    if cell.outcome != "quantized" or cell.truth is None or cell.reported is None:
        return False
    return abs(min(cell.truth, 1.0) - cell.reported) > NEAR


def summary(cells: Sequence[Cell], before: Sequence[Cell] = ()) -> list[list[str]]:
    """Return a head, and a row for each half, declaration and release."""
    releases = [("before", before), ("after", cells)] if before else [("", cells)]
    head = [
        *("half", "declared", "release", "cells", "quantized", "float", "rejected", "failed"),
        *("weak", f"below {_short(LOST)}, not weak (goal 0)"),
        f"within {_short(NEAR)} (goal 95 %)",
        f"not weak, within {_short(NEAR)}",
        f"intact, rejected (goal ≤ 5 %, intact: {_short(INTACT)})",
    ]
    found = [head]
    for half in ("developed", "independent"):
        for is_declared in (False, True):
            for release, of_release in releases:
                chosen = [c for c in of_release if (c.half, c.is_declared) == (half, is_declared)]
                if chosen:
                    found.append([half, "yes" if is_declared else "no", release, *_counts(chosen)])
    found += [["both", "both", release, *_counts(chosen)] for release, chosen in releases]
    return found


def _counts(cells: Sequence[Cell]) -> list[str]:
    counts = Counter(cell.outcome for cell in cells)
    quantized = [cell for cell in cells if cell.outcome == "quantized"]
    told = [cell for cell in quantized if cell.truth is not None and cell.reported is not None]
    sure = [cell for cell in told if not cell.weak]
    known = [c for c in cells if c.outcome in ("quantized", "rejected") and c.truth is not None]
    intact = [cell for cell in known if (cell.truth or 0) >= INTACT]
    return [
        *(str(len(cells)), str(len(quantized)), str(counts["float"]), str(counts["rejected"])),
        str(counts["failed"] + counts["over the time limit"]),
        _ratio(sum(bool(cell.weak) for cell in cells), len(cells)),
        str(sum(map(is_lost_silently, cells))),
        *(_ratio(sum(not is_wrong(cell) for cell in all_), len(all_)) for all_ in (told, sure)),
        _ratio(sum(cell.outcome == "rejected" for cell in intact), len(intact)),
    ]


def missed(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each cell that misses a goal, with the measure that decided."""
    for cell in cells:
        is_intact = cell.outcome == "rejected" and (cell.truth or 0) >= INTACT
        is_failed = cell.outcome in ("failed", "over the time limit")
        if is_lost_silently(cell) or is_wrong(cell) or is_intact or is_failed:
            declared = " (declared)" if cell.is_declared else ""
            value = "" if cell.value is None else f"; {cell.metric} {cell.value:.4g}"
            because = f"; {cell.because[:150]}" if is_intact or is_failed else ""
            yield f"{cell.kind}, {cell.profile}{declared}: {describe(cell)}{value}{because}"


def _share(value: float | None) -> str:
    return "-" if value is None else _short(round(value, 3), ".3f")


def _short(value: float, form: str = "g") -> str:
    text = format(value, form)
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _ratio(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.0%})".replace("%", " %") if total else "-"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
