"""Progress on stderr: a bar on a terminal, else lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from edgepack.packager.cli.progress_lines import progress_lines
from edgepack.packager.graph.model_files import keep_runtime_quiet
from edgepack.packager.progress import BuildStep, Progress

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Show the current step on stderr: a bar on a terminal, else lines."""
    keep_runtime_quiet()
    if not sys.stderr.isatty():
        with progress_lines(lambda line: click.echo(line, err=True)) as lines:
            yield lines
        return
    from rich.console import Console  # it is slow to import, and nothing else in a build needs it

    with progress_bar(Console(stderr=True)) as bar:
        yield bar


@contextmanager
def progress_bar(console: "Console") -> Iterator[Progress]:
    """Yield a progress bar in a single line that disappears at the end: step, candidates, best so
    far, time.
    """
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Time(ProgressColumn):
        """Time left for a limited search; else the elapsed time."""

        def render(self, task: Task) -> Text:
            ends_at = task.fields["ends_at"]
            if ends_at is None:
                return Text(_clock(task.elapsed or 0.0))
            return Text(f"{_clock(max(0.0, ends_at - time.monotonic()))} left")

    one_line = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=one_line),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[search]}", markup=False),
        Time(),
    )
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        task = bars.add_task("starting", total=None, search="", ends_at=None)
        shown, ends_at = BuildStep(), None

        def show(step: BuildStep) -> None:
            nonlocal shown, ends_at
            before, shown = shown, _together(shown, step)
            if step.left_s is not None:
                ends_at = time.monotonic() + step.left_s
            elif shown.profile != before.profile:
                ends_at = None
            words = str(replace(shown, total=0, outcome=""))
            best = f"{shown.candidates} tried, best {shown.best}" if shown.best else ""
            bars.update(
                task,
                description=words,
                completed=shown.done,
                total=shown.total or None,
                search=best,
                ends_at=ends_at,
            )

        yield show


def _together(before: BuildStep, step: BuildStep) -> BuildStep:
    """Return a step with the earlier facts about the same step and about its profile's search."""
    if not step.what:
        step = replace(step, what=before.what, profile=before.profile)
    if step.profile != before.profile:
        return step
    candidates, best = step.candidates or before.candidates, step.best or before.best
    return replace(step, candidates=candidates, best=best)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
