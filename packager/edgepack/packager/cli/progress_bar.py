"""Progress on stderr: a bar on a terminal, else lines.

Progress without a terminal: a line for each step, with its duration.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

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


_STILL_S = 30.0
"""A step that takes longer says so as often."""

_UNTOLD_S = 0.05
"""A step that takes less has no line, unless something came of it; its time goes to the next."""


class ProgressLines:
    """Writes a line when a step is over.

    Args:
        write: Writes a line.
        clock: Returns seconds; only differences count.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._step = BuildStep()
        self._since = self._told = clock()

    def __call__(self, step: BuildStep) -> None:
        """Record the current step."""
        with self._lock:
            if not step.what:
                step = replace(step, what=self._step.what, profile=self._step.profile)
            elif (step.profile, step.what) != (self._step.profile, self._step.what):
                self._end()
            self._step = step
            if step.outcome:
                self._end()

    def report_silence(self, every_s: float) -> None:
        """Report the current step after a silence of `every_s` seconds."""
        with self._lock:
            if self._step.what and self._clock() - self._told >= every_s:
                self._tell(f"{self._step} …")

    def end(self) -> None:
        """Report the last step."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        step, self._step = self._step, BuildStep()
        if step.what and (step.outcome or self._clock() - self._since >= _UNTOLD_S):
            self._tell(str(replace(step, detail="", total=0)))
            self._since = self._clock()

    def _tell(self, words: str) -> None:
        self._told = self._clock()
        self._write(f"{self._told - self._since:7.1f} s  {words}")


@contextmanager
def progress_lines(write: Callable[[str], None], every_s: float = _STILL_S) -> Iterator[Progress]:
    """Write lines; during a long step, repeat the line.

    Args:
        write: Writes a line.
        every_s: How long there may be silence, seconds.
    """
    lines, is_over = ProgressLines(write), threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s / 2):
            lines.report_silence(every_s)

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield lines
        lines.end()
    finally:
        is_over.set()
        watcher.join()
