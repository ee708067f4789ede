"""Progress on stderr: a bar where it is a terminal, nothing where it is not."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from edgepack.packager.progress import Progress, silent


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Shows what is being done as one line that is gone at the end."""
    if not sys.stderr.isatty():
        yield silent
        return
    # rich is slow to import, and nothing else in a build needs it.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)
        shown = ""

        def show(what: str, done: int, total: int) -> None:
            nonlocal shown
            if what != shown:
                shown = what
                bars.reset(task, description=what, total=total or None, completed=done)
            else:
                bars.update(task, completed=done, total=total or None)

        yield show
