"""Race of candidates: speed against the float model and against each other, on this host, in the
environment of a profile's devices, or on a board.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.gates import checks as gates
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.evaluator import Evaluator, profile_settings
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.provider_process import MODULE, ProviderProcess, TrialProcess
from edgepack.packager.runtime.race_child import RaceAnswer, RaceRequest
from edgepack.packager.runtime.timing import (
    FEWEST_ROUNDS,
    MOST_SAMPLES,
    Turns,
    has_thread_clock,
    take_turns,
)
from edgepack.packager.runtime.trial import Asked
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.speedup import Speedup, measure_speedup
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.exchange import write_tensors
from edgepack.packager.tensors.sequence import Feeds, Samples

_LATENCY_ROUNDS = 30
_QUICK_ROUNDS = 10
_MOST_OTHERS = 12
_OTHERS_S = 2.0
"""Candidates beside the best are timed for the report, where they are fast enough for that."""


TIMEOUT_S = 600.0

_RACES = "races"


@dataclass(frozen=True)
class Race:
    """Times candidates against the float model, where their provider runs.

    Attributes:
        prepared: The float model, or another that candidates are raced against.
        profile: The profile.
        evaluator: Opens models at the place of measurement.
        samples: Inputs of the races.
        limit: The time of the search, and of the profile.
    """

    prepared: Path
    profile: Profile
    evaluator: Evaluator
    samples: Samples
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(None))

    def is_hopeless(self, candidate: Path) -> bool:
        """Return whether a candidate with every node lowered is surely too slow to continue with.

        Nodes that return to float cannot compensate.

        Raises:
            OutOfTimeError: The time of the profile is used up.
        """
        gate = self.profile.gates
        factor = gates.HOPELESSLY_SLOW_FACTORS.get(gate.prefer)
        if (
            factor is None
            or "slower" not in gate.float_instead
            or not (self.evaluator.venue.is_native or self.evaluator.venue.boards)
        ):
            return False
        raced = measure_speedup(
            lambda: self._run_once(candidate, _QUICK_ROUNDS), 1 / factor, self._may_go_on
        )
        return raced.outcome == "not faster"

    @property
    def can_run(self) -> bool:
        """True if the provider runs here, in a toolchain or on a board, at its real speed."""
        venue = self.evaluator.venue
        has_place = bool(venue.boards) or venue.toolchain is not None or venue.is_native
        return not venue.is_simulated and has_place

    def run(self, path: Path, asked: float | None) -> Speedup | None:
        """Race a candidate against the float model, on a single thread.

        Args:
            path: The candidate.
            asked: The least worthwhile speedup; None for any.

        Returns:
            The speedup, of several boards the least; None if the provider is not here, nor in a
            toolchain or on a board, or only simulated.

        Raises:
            BuildError: The provider of the toolchain or board cannot run either model.
            OutOfTimeError: The time of the profile is used up.
        """
        if not self.can_run:
            return None
        boards = self.evaluator.venue.boards
        raced = [
            measure_speedup(
                partial(self._run_once, path, _LATENCY_ROUNDS, board), asked, self._may_go_on
            )
            for board in boards or (None,)
        ]
        least = min(raced, key=lambda speedup: speedup.ratio)
        times = {
            board.name: (speedup.latency_ms, speedup.float_latency_ms)
            for board, speedup in zip(boards, raced, strict=False)
        }
        return replace(least, on_boards=times)

    def _run_once(self, path: Path, rounds: int, board: Board | None = None) -> Turns:
        venue, paths = self.evaluator.venue, (path, self.prepared)
        place = board or next(iter(venue.boards), None) or venue.toolchain
        if place is None:
            return self._take_turns(paths, rounds)
        timeout_s = self.limit.profile.timeout_s(TIMEOUT_S)
        try:
            return race_elsewhere(
                paths, self._feeds(), self.profile, place, rounds=rounds, timeout_s=timeout_s
            )
        except BuildError:
            self.limit.profile.check()  # it may have been ended for that
            raise

    def _may_go_on(self) -> bool:
        return self.limit.left_s != 0.0

    def run_others(
        self, found: SearchResult, best_latency_ms: float
    ) -> dict[tuple[str, float], float]:
        """Return medians of other candidates, as many as 2 s allow, candidates within the budget
        first.

        Args:
            found: Result of the search.
            best_latency_ms: Median of the best candidate; the best candidate runs next to the
                others, to scale their times.

        Returns:
            Milliseconds by a candidate's words and accuracy; none where the provider is not here.
        """
        if not self.evaluator.venue.is_native:
            return {}
        best = found.best
        room = int(_OTHERS_S * 1e3 / (FEWEST_ROUNDS * best_latency_ms)) - 1
        others = [
            each for each in found.candidates if each.path != best.path and each.path.exists()
        ]
        others.sort(key=lambda each: not each.verdict.passed)
        others = others[: max(0, min(room, _MOST_OTHERS))]
        if not others:
            return {}
        paths = (best.path, *(each.path for each in others))
        anchor_ms, *times = self._take_turns(paths, _LATENCY_ROUNDS).medians_ms
        return {
            (each.words, each.verdict.value): best_latency_ms * taken / anchor_ms
            for each, taken in zip(others, times, strict=True)
        }

    def _take_turns(self, paths: Sequence[Path], rounds: int) -> Turns:
        computes_here = self.evaluator.is_on_cpu and has_thread_clock()
        return take_turns(
            [self.evaluator.open(path, threads=1) for path in paths],
            self._feeds(),
            rounds=rounds,
            clock=time.thread_time if computes_here else None,
            before_each=self.limit.profile.check,
        )

    def _feeds(self) -> list[Feeds]:
        return [
            self.samples.read(number) for number in range(min(self.samples.count, MOST_SAMPLES))
        ]


def race_elsewhere(
    models: Sequence[Path],
    feeds: Sequence[Feeds],
    profile: Profile,
    place: PinnedToolchain | Board,
    *,
    rounds: int,
    timeout_s: float = TIMEOUT_S,
) -> Turns:
    """Time models on a single thread, in turns, by a profile's provider elsewhere.

    Args:
        models: Their files.
        feeds: Inputs by name, at least 1.
        profile: Names provider and options.
        place: The environment, or the board.
        rounds: See `take_turns`.
        timeout_s: Time limit, seconds.

    Raises:
        BuildError: The provider refuses a model, fails, crashes or hangs.
        BoardLostError: The board does not answer any longer.
    """
    where = f"{profile.device.provider} of {_owner(place)}, {place.words}"
    with tempfile.NamedTemporaryFile(dir=models[0].parent, suffix=".npz") as file:
        write_tensors(Path(file.name), [dict(each) for each in feeds])
        request = RaceRequest(
            models=tuple(str(path) for path in models),
            feeds=file.name,
            feed_count=len(feeds),
            settings=profile_settings(profile),
            rounds=rounds,
            timeout_s=timeout_s,
        )
        with _process(place) as process:
            ending = process.ask(msgspec.json.encode(Asked(race=request)), timeout_s=timeout_s)
    remedy = "another profile for this device, or a report to the provider's vendor"
    failed = f"the model does not survive {profile.device.provider}"
    if ending.answer is None:
        raise BuildError(f"{failed}: {ending.because}", found_in=where, remedy=remedy)
    try:
        answer = decode_json(ending.answer, RaceAnswer)
    except msgspec.MsgspecError as error:
        problem = f"{failed}: its answer cannot be read: {error}"
        raise BuildError(problem, found_in=where, remedy=remedy) from error
    if answer.problem:
        raise BuildError(answer.problem, found_in=where, remedy=answer.remedy or None)
    return Turns(times_s=answer.times_s)


@contextmanager
def _process(place: PinnedToolchain | Board) -> Iterator[TrialProcess]:
    """Yield a fresh process in an environment, or the process of races on a board: a slow board
    loads ONNX Runtime once.
    """
    if isinstance(place, Board):
        if place.process.subject != _RACES:
            place.process.start_anew(_RACES)
        yield place.process
        return
    with ProviderProcess() as process:
        process.start_anew(_RACES, command=place.command(MODULE))
        yield process


def _owner(place: PinnedToolchain | Board) -> str:
    return f"board {place.name}" if isinstance(place, Board) else "its toolchain"
