"""How fast candidates are, against the float model and against each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.packager.gates import checks as gates
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.timing import FEWEST_ROUNDS, MOST_SAMPLES, interleaved_medians_ms
from edgepack.packager.runtime.toolchain_race import race_elsewhere
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.tensors.sequence import Feeds, Samples

_LATENCY_ROUNDS = 30
_QUICK_ROUNDS = 10
_MORE_RACES = 4
"""An even number, so that there is a middle one."""

_MOST_OTHERS = 12
_OTHERS_S = 2.0
"""Candidates beside the best are timed for the report, where they are fast enough for that."""


@dataclass(frozen=True)
class Race:
    """Times candidates against the float model, where their provider is here or in a toolchain.

    Attributes:
        prepared: The float model.
        profile: The profile.
        evaluator: Opens models where they are measured.
        samples: What they run.
    """

    prepared: Path
    profile: Profile
    evaluator: Evaluator
    samples: Samples

    def is_hopeless(self, candidate: Run) -> bool:
        """Whether a candidate with every node lowered is too slow to be published with fewer."""
        gate = self.profile.gates
        factor = gates.HOPELESSLY_SLOW_FACTORS.get(gate.prefer)
        if (
            factor is None
            or "slower" not in gate.float_instead
            or not self.evaluator.venue.is_native
        ):
            return False
        runs = (candidate, self.evaluator.open(self.prepared))
        taken_ms, float_ms = interleaved_medians_ms(runs, self._feeds(), rounds=_QUICK_ROUNDS)
        return gates.is_slower(taken_ms, float_ms, factor=factor)

    def run(self, path: Path) -> tuple[float, float] | None:
        """Medians on one thread, milliseconds: the candidate's and the float model's.

        Where they are close, of several races in sessions of their own the middle one.

        Returns:
            Those; None where the provider is not here, nor in a toolchain, or only simulated.

        Raises:
            BuildError: The provider of the toolchain cannot run one of both.
        """
        venue = self.evaluator.venue
        if venue.is_simulated or not (venue.toolchain is not None or venue.is_native):
            return None
        races = [self._run_once(path)]
        if max(races[0]) < gates.CLOSE_FACTOR * min(races[0]):
            races += [self._run_once(path) for _ in range(_MORE_RACES)]
        races.sort(key=lambda times: times[0] / times[1])
        return races[len(races) // 2]

    def _run_once(self, path: Path) -> tuple[float, float]:
        toolchain, paths = self.evaluator.venue.toolchain, (path, self.prepared)
        taken_ms, float_ms = (
            self._medians_ms(paths)
            if toolchain is None
            else race_elsewhere(
                paths, self._feeds(), self.profile, toolchain, rounds=_LATENCY_ROUNDS
            )
        )
        return taken_ms, float_ms

    def run_others(
        self, found: SearchResult, best_latency_ms: float
    ) -> dict[tuple[str, float], float]:
        """Medians of other candidates, as many as 2 s allow, those within the budget first.

        Args:
            found: What the search left.
            best_latency_ms: Of the best candidate; it runs beside the others, whose times are told
                by its own.

        Returns:
            Milliseconds by a candidate's words and accuracy; none where the provider is not here.
        """
        if not self.evaluator.venue.is_native:
            return {}
        best = found.best
        room = int(_OTHERS_S * 1e3 / (FEWEST_ROUNDS * best_latency_ms)) - 1
        others = [each for each in found.candidates if each.key != best.key and each.path.exists()]
        others.sort(key=lambda each: not each.verdict.passed)
        others = others[: max(0, min(room, _MOST_OTHERS))]
        if not others:
            return {}
        anchor_ms, *times = self._medians_ms((best.path, *(each.path for each in others)))
        return {
            (each.words, each.verdict.value): best_latency_ms * taken / anchor_ms
            for each, taken in zip(others, times, strict=True)
        }

    def _medians_ms(self, paths: Sequence[Path]) -> tuple[float, ...]:
        return interleaved_medians_ms(
            [self.evaluator.open(path, threads=1) for path in paths],
            self._feeds(),
            rounds=_LATENCY_ROUNDS,
        )

    def _feeds(self) -> list[Feeds]:
        return [
            self.samples.read(number) for number in range(min(self.samples.count, MOST_SAMPLES))
        ]
