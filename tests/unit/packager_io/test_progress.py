"""Progress of a build's steps: lines if piped, a bar on a terminal."""

import re
import threading
from io import StringIO

import pytest
from rich.console import Console

from edgepack.packager.cli.progress_bar import ProgressLines, progress_bar, progress_lines
from edgepack.packager.progress import BuildStep, Progress, for_profile, within


class _Clock:
    """Clock of a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _lines(*told: tuple[float, BuildStep]) -> list[str]:
    """Return the lines of steps reported at given seconds; the last ends at the last second."""
    clock, lines = _Clock(), list[str]()
    show = ProgressLines(lines.append, clock)
    for clock.now, step in told:
        show(step)
    show.end()
    return lines


def test_a_step_is_told_when_it_is_over_with_the_time_it_took() -> None:
    assert _lines(
        (0.0, BuildStep(what="checking samples", done=1, total=2)),
        (1.5, BuildStep(what="checking samples", done=2, total=2)),
        (2.0, BuildStep(what="float passes", profile="cpu", detail="clean", done=1, total=6)),
        (2.25, BuildStep(what="candidate 1", profile="cpu")),
        (4.0, BuildStep(what="candidate 1", profile="cpu", outcome="minmax, cosine 0.9912")),
    ) == [
        "    2.0 s  checking samples",
        "    0.2 s  cpu: float passes",
        "    1.8 s  cpu: candidate 1: minmax, cosine 0.9912",
    ]


def test_parts_of_a_step_have_no_line_and_what_takes_no_time_has_one_only_for_its_outcome() -> None:
    assert _lines(
        (0.0, BuildStep(what="candidate 1")),
        (1.0, BuildStep(detail="calibrating", done=1, total=2)),
        (3.0, BuildStep(what="candidate 1", outcome="minmax")),
        (3.0, BuildStep(what="candidate 2")),
        (3.0, BuildStep(what="candidate 2", outcome="mse")),
        (3.0, BuildStep(what="timing")),
        (3.01, BuildStep(what="held-out samples")),
        (4.0, BuildStep(what="rehearsing")),
    ) == [
        "    3.0 s  candidate 1: minmax",
        "    0.0 s  candidate 2: mse",
        "    1.0 s  held-out samples",
    ]


def test_what_takes_long_is_told_while_it_goes_on() -> None:
    clock, lines = _Clock(), list[str]()
    show = ProgressLines(lines.append, clock)
    show(BuildStep(what="candidate 1", profile="cpu"))
    show(BuildStep(detail="calibrating", done=3, total=9))
    clock.now = 29.0
    show.report_silence(30.0)
    assert lines == []
    clock.now = 31.0
    show.report_silence(30.0)
    show.report_silence(30.0)
    assert lines == ["   31.0 s  cpu: candidate 1, calibrating, 3 of 9 …"]


def test_a_build_that_tells_nothing_is_told_to_go_on() -> None:
    is_told = threading.Event()

    def write(line: str) -> None:
        if line.endswith("s  exporting …"):
            is_told.set()

    with progress_lines(write, every_s=0.01) as show:
        show(BuildStep(what="exporting"))
        assert is_told.wait(400)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (BuildStep(what="float passes", profile="cpu", detail="clean"), "cpu: float passes, clean"),
        (BuildStep(what="running", done=3, total=40), "running, 3 of 40"),
        (BuildStep(what="candidate 2", outcome="mse, 0.99"), "candidate 2: mse, 0.99"),
    ],
)
def test_a_step_prints_as_a_line(step: BuildStep, words: str) -> None:
    assert str(step) == words


def test_a_step_inside_another_is_a_part_of_it_and_keeps_the_time_that_is_left() -> None:
    told: list[BuildStep] = []
    progress: Progress = within(for_profile(told.append, "xint8"), "looking at a8w8")
    progress(BuildStep(what="candidate 1", outcome="minmax", best="0.9", left_s=3.0))
    progress(BuildStep(detail="calibrating", done=1, total=2))
    assert told == [
        BuildStep(profile="xint8", what="looking at a8w8", detail="candidate 1", left_s=3.0),
        BuildStep(profile="xint8", what="looking at a8w8", detail="calibrating", done=1, total=2),
    ]


def _last_frame(*steps: BuildStep, width: int = 80) -> list[str]:
    """Return the terminal's final lines, without control sequences and colours."""
    terminal = StringIO()
    console = Console(file=terminal, force_terminal=True, width=width, color_system=None)
    with progress_bar(console) as show:
        for step in steps:
            show(step)
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", terminal.getvalue()).split("\r")
    return next(frame for frame in reversed(frames) if frame.strip()).strip("\n").split("\n")


def test_a_terminal_shows_one_line_with_step_candidates_best_and_the_time_that_is_left() -> None:
    (line,) = _last_frame(
        BuildStep(what="candidate 7", profile="cpu", candidates=6, best="0.9914 ≥ 0.98", left_s=95),
        BuildStep(profile="cpu", detail="histograms", done=3, total=9),
    )
    assert len(line) <= 80
    assert re.search(
        r"cpu: candidate 7, histograms .* 6 tried, best 0\.9914 ≥ 0\.98 1:3[0-5] left$", line
    )


def test_what_is_too_long_for_a_terminal_is_cut_and_stays_one_line() -> None:
    (line,) = _last_frame(
        BuildStep(what="running on SomeVendorsExecutionProvider " + "x" * 60, profile="qnn-htp")
    )
    assert len(line) <= 80
    assert "…" in line


def test_another_profile_begins_without_the_candidates_of_the_one_before() -> None:
    (line,) = _last_frame(
        BuildStep(what="candidate 7", profile="cpu", candidates=6, best="0.9914", left_s=95),
        BuildStep(what="float passes", profile="qnn-htp"),
    )
    assert "tried" not in line
    assert re.search(r"qnn-htp: float passes .* 0:\d\d$", line), "the time that was taken"
