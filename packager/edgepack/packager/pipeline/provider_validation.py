"""A variant's run on its own provider: where its nodes went, and whether its outputs are right."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.runtime.probing import LEAST_SAMPLES
from edgepack.errors import BuildError
from edgepack.packager.gates import checks as gates
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.provider_errors import name_known_wrong_ops
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.board import Board, BoardError
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.evaluator import Evaluator, Venue, profile_settings
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.provider_process import MODULE, ProviderProcess, report_waiting
from edgepack.packager.runtime.trial import Asked, Trial, try_model
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.plain_error import PlainError
from edgepack.text import counted

_FEWEST_SAMPLES = 4
_FEWEST_SIMULATED = LEAST_SAMPLES
"""A simulator takes up to 7 s an inference. How accurate a variant is, all held-out samples tell on
the CPU; what runs here tells whether the provider computes the same, and an operator that it
computes wrongly is off in most samples, if not in all: as many run as the time allows. They are
those that the rehearsal, and a device, computes too."""

_TIMEOUT_S = 600.0


class ProviderRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        trial: Placement and outputs, of the samples that always run.
        seen: Evidence from these samples: a slower machine makes the same bundle.
        refusal: Why the outputs of all samples that ran must not be published, or None.
    """

    trial: Trial
    seen: Seen
    refusal: gates.Refusal | None


@dataclass(frozen=True)
class ProviderValidation:
    """Runs a model's variants on their provider, if the provider is here or simulated.

    Attributes:
        float_source: Runs the source model.
        tried: Samples; the first always run, further samples as the time allows.
        golden_count: How many of the first samples are golden.
        process: Process of the runs, kept for the rehearsal; None keeps none.
        progress: Called for each run.
        deadline: The end of the profile's time.
    """

    float_source: Run
    tried: Samples
    golden_count: int
    process: ProviderProcess | None
    progress: Progress
    deadline: Deadline = field(default_factory=Deadline)

    def load_ahead(self, profile: Profile, venue: Venue) -> None:
        """Start the process for a later `run` if needed, so that the process loads meanwhile."""
        if self.process is not None and venue.can_run and not venue.boards:
            load = msgspec.json.encode(Asked(load=profile.device.provider))
            self.process.start_anew(profile.name, load, _child(venue))

    def run(
        self,
        model: Path,
        evaluator: Evaluator,
        stand_in: Sequence[PlainError],
        board: Board | None = None,
    ) -> ProviderRun | None:
        """Run a variant in a process of its own.

        Args:
            model: Its file.
            evaluator: Knows the profile, and whether its provider can run here.
            stand_in: By output, on all held-out samples and on the CPU, as the variant stands.
            board: The board to run on; None for this host or the toolchain.

        Returns:
            Result of the run; None if the provider cannot run here.

        Raises:
            ProviderRefusedError: The provider refused the model, failed, crashed or hung.
            OutOfTimeError: The time of the profile was used up before the first sample ran.
            BoardLostError: The board does not answer any longer.
        """
        if not evaluator.venue.can_run:
            return None
        profile = evaluator.profile
        least = _FEWEST_SIMULATED if evaluator.venue.is_simulated else _FEWEST_SAMPLES
        timeout_s = self.deadline.timeout_s(_TIMEOUT_S)
        where = f" of {board.name}" if board else ""
        self.progress(BuildStep(what=f"running on {profile.device.provider}{where}"))
        try:
            trial = try_model(
                model,
                self.tried,
                profile_settings(profile),
                timeout_s=timeout_s,
                least=least,
                process=board.process if board else self.process,
                variant=profile.name,
                command=None if board else _child(evaluator.venue),
                waiting=report_waiting(self.progress, timeout_s),
            )
        except BuildError as error:
            self.deadline.check()  # it may have been ended for that
            raise ProviderRefusedError(error, model) from error
        if board is not None:
            for feeds, outputs in zip(self.tried, trial.outputs, strict=False):
                check_alike(board, self.float_source(feeds), outputs)
        refusal = gates.check_trial(profile, stand_in, self._seen(trial, profile).errors)
        if refusal is not None:
            there = f"{profile.name}, run on {board.words}" if board else refusal.found_in
            refusal = name_known_wrong_ops(replace(refusal, found_in=there), model, profile)
        first = replace(trial, outputs=trial.outputs[:least])
        return ProviderRun(trial=first, seen=self._seen(first, profile), refusal=refusal)

    def _seen(self, trial: Trial, profile: Profile) -> Seen:
        ran = self.tried.first(len(trial.outputs))
        pairs = [
            (self.float_source(feeds), got) for feeds, got in zip(ran, trial.outputs, strict=True)
        ]
        evaluated = [
            tuple(ran.evaluated(index, outputs) for outputs in pair)
            for index, pair in enumerate(pairs)
        ]
        expected, got = (tuple(each) for each in zip(*evaluated, strict=True))
        reference = Reference(expected, profile.gates.accuracy, ran.description)
        golden = range(min(self.golden_count, ran.count))
        return Seen(
            errors=reference.errors(got),
            expected=tuple(ran.golden(place, expected[place]) for place in golden),
            got=tuple(ran.golden(place, got[place]) for place in golden),
        )

    def is_taken(self, model: Path, evaluator: Evaluator, *, timeout_s: float) -> bool:
        """Return True if the provider opens a model and runs a sample, in a separate process.

        Args:
            model: Its file.
            evaluator: Knows the profile, and where its provider runs.
            timeout_s: Time limit, seconds.

        Raises:
            OutOfTimeError: The time of the profile is used up.
        """
        if self.process is not None:
            self.process.close()  # it refused a model: what it holds is of no use
        try:
            for board in evaluator.venue.boards or (None,):
                try_model(
                    model,
                    self.tried.first(1),
                    profile_settings(evaluator.profile),
                    timeout_s=self.deadline.timeout_s(timeout_s),
                    process=board.process if board else None,
                    command=_child(evaluator.venue),
                )
        except BuildError:
            self.deadline.check()
            return False
        return True


def check_alike(board: Board, expected: Outputs, got: Outputs) -> None:
    """Reject outputs that cannot be the model's: a board may send anything.

    Args:
        board: The board.
        expected: Outputs of the float model on a sample.
        got: Outputs that the board sent for the sample.

    Raises:
        BoardError: Names, kinds of numbers or numbers of axes are others.
    """
    here, there = _signature(expected), _signature(got)
    if here != there:
        raise BoardError(
            f"board {board.name} sent outputs {', '.join(there)}, and the model has "
            f"{', '.join(here)}",
            found_in=f"ssh://{board.name}",
            remedy="look at the board, its Python and its packages",
        )


def _signature(outputs: Outputs) -> tuple[str, ...]:
    return tuple(
        f"{name!a} ({value.dtype.kind}, {counted(value.ndim, 'axis', 'axes')})"
        for name, value in sorted(outputs.items())
    )


class ProviderRefusedError(BuildError):
    """A provider refused a whole model, failed, crashed or hung.

    Args:
        error: The refusal, in the provider's words.
        model: The rejected file.
    """

    def __init__(self, error: BuildError, model: Path) -> None:
        super().__init__(error.problem, found_in=error.found_in, remedy=error.remedy)
        self.model = model


def _child(venue: Venue) -> tuple[str, ...] | None:
    return venue.toolchain.command(MODULE) if venue.toolchain else None
