"""Validation on boards: placement, outputs and accuracy of a variant on the hardware itself.

A variant must hold on every board that its profile matches: the board with the least to spare
stands for all in the gates, and each board has a row in the report. All held-out samples run there,
in parts; inferences that depend on earlier outputs (carried states, tokens) run one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.matching import why_unfit
from edgepack.errors import BuildError
from edgepack.packager.gates import checks as gates
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.memory import divide_by_size
from edgepack.packager.pipeline.holdout_verdict import (
    HoldoutVerdict,
    doubt_extremes,
    judge_on_holdout,
)
from edgepack.packager.pipeline.provider_validation import (
    ProviderRun,
    ProviderValidation,
    check_alike,
)
from edgepack.packager.pipeline.selection import EvaluationInputs, SearchedCombination
from edgepack.packager.pipeline.variant_facts import requirements_of
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import BuildStep
from edgepack.packager.reports.report import BoardResult, VariantReport
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.trial import try_model
from edgepack.packager.tensors.sequence import Feeds, Samples, digest_of
from edgepack.tasks.arrays import Outputs, Tensor

_PART_BYTES = 64_000_000
"""Inputs and outputs of the samples that a board is sent at once."""

_TIMEOUT_S = 600.0


class ProvenOnBoards(msgspec.Struct, frozen=True, kw_only=True):
    """Result of all boards.

    Attributes:
        judged, run: Of the board with the least to spare.
        results: Of each board.
    """

    judged: HoldoutVerdict
    run: ProviderRun
    results: tuple[BoardResult, ...]


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """Boards that prove a profile.

    Attributes:
        boards: Boards that the profile's devices may be.
        unproven: Why there is none, by the hardware of boards; "" with a board, or if no board was
            named.
    """

    boards: tuple[Board, ...] = ()
    unproven: str = ""


def match_boards(boards: Sequence[Board], profiles: Sequence[Profile]) -> dict[str, Matched]:
    """Return the boards that prove each profile, by its name.

    Args:
        boards: Boards that answered.
        profiles: Profiles of the build.

    Raises:
        BuildError: A board fits no profile, so it could prove nothing.
    """
    unfit = {
        (board.name, profile.name): why_unfit(
            profile.device.provider,
            profile.device.type,
            requirements_of(profile, None),
            board.facts,
            ProviderConfig(),
        )
        for board in boards
        for profile in profiles
    }
    for board in boards:
        reasons = {profile.name: unfit[board.name, profile.name] for profile in profiles}
        if all(reasons.values()):
            raise BuildError(
                f"board {board.name} fits none of the profiles, so it proves nothing",
                found_in="\n    ".join(f"{name}: {because}" for name, because in reasons.items()),
                remedy=f"a --profile for {board.words}, or leave the board out",
            )
    return {profile.name: _matched(profile.name, boards, unfit) for profile in profiles}


def _matched(
    profile: str, boards: Sequence[Board], unfit: Mapping[tuple[str, str], str]
) -> Matched:
    proving = tuple(board for board in boards if not unfit[board.name, profile])
    reasons = (f"{board.words}: {unfit[board.name, profile]}" for board in boards)
    return Matched(boards=proving, unproven="" if proving else "; ".join(reasons))


def prove_on_boards(
    model: Path,
    searched: SearchedCombination,
    stand_in: Seen,
    inputs: EvaluationInputs,
    validation: ProviderValidation,
) -> ProvenOnBoards:
    """Run a variant on each of its boards.

    Args:
        model: Its file, with the outputs that are only watched.
        searched: The candidate, with its boards.
        stand_in: Its outputs on the CPU's stand-in.
        inputs: Have the held-out samples, and the metric or the labels that judge.
        validation: Runs the first samples, and knows the end of the profile's time.

    Raises:
        ProviderRefusedError: A board's provider refused the model, failed, crashed or hung.
        BoardLostError: A board does not answer any longer.
        OutOfTimeError: The time of the profile was used up.
    """
    profile = searched.profile
    found: list[tuple[ProviderRun, HoldoutVerdict, BoardResult]] = []
    for board in searched.venue.boards:
        run = validation.run(model, searched.evaluator, stand_in.errors, board)
        if run is None:
            raise ValueError("a venue with boards can run")
        validation.progress(BuildStep(what=f"held-out samples on {board.name}"))
        infer = _open(board, model, profile, inputs, validation)
        budgets = profile.gates.accuracy
        judged = judge_on_holdout(infer, budgets, inputs)
        judged = doubt_extremes(infer, budgets, inputs, judged)
        found.append((run, judged, _describe(board, profile, run, judged)))
    run, judged, _ = min(found, key=lambda it: (_holds(profile, it[0], it[1]), it[1].verdict.spare))
    return ProvenOnBoards(judged=judged, run=run, results=tuple(result for _, _, result in found))


def _holds(profile: Profile, run: ProviderRun, judged: HoldoutVerdict) -> bool:
    is_placed = gates.check_placement(profile, run.trial.placement) is None
    return judged.verdict.passed and run.refusal is None and is_placed


def _open(
    board: Board,
    model: Path,
    profile: Profile,
    inputs: EvaluationInputs,
    validation: ProviderValidation,
) -> Run:
    """Return a function that runs an inference on a board, where the model is open."""
    held_out, known = inputs.split.held_out, dict[bytes, Outputs]()

    def fetch(samples: Samples) -> None:
        trial = try_model(
            model,
            samples,
            profile_settings(profile),
            timeout_s=validation.deadline.timeout_s(_TIMEOUT_S),
            process=board.process,
            variant=profile.name,
            reuse=True,
        )
        for feeds, outputs in zip(samples, trial.outputs, strict=True):
            check_alike(board, inputs.float_source(feeds), outputs)
            known[digest_of(feeds)] = outputs

    def run(feeds: Feeds) -> Outputs:
        key = digest_of(feeds)
        if key not in known:
            fetch(Samples(count=1, read=lambda _: feeds, source="an inference"))
        return known[key]

    if held_out.states or held_out.decoder:
        return run
    for samples in filter(None, (held_out, inputs.split.extremes)):
        sizes = (_size_of(feeds, inputs.float_source(feeds)) for feeds in samples)
        for part in divide_by_size(enumerate(sizes), _PART_BYTES):
            fetch(samples.pick(part))
            done = part[-1] + 1
            validation.progress(BuildStep(detail=board.name, done=done, total=samples.count))
    return run


def _size_of(*tensors: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for part in tensors for value in part.values())


def _describe(
    board: Board, profile: Profile, run: ProviderRun, judged: HoldoutVerdict
) -> BoardResult:
    facts, verdict, provider = board.facts, judged.verdict, profile.device.provider
    return BoardResult(
        board=board.name,
        arch=facts.arch,
        machine=board.machine,
        cpu_count=facts.cpu_count,
        os=facts.os,
        python=facts.python,
        runtime=facts.runtime,
        provider=provider,
        provider_version=next((it.version for it in facts.providers if it.name == provider), ""),
        metric=verdict.metric,
        accuracy=round(verdict.value, 6),
        budget=round(verdict.shown_budget, 6),
        passed=_holds(profile, run, judged),
        placement=run.trial.placement,
    )


def describe_proof(
    failed: str, proven: Iterable[VariantReport], boards: Mapping[str, tuple[Board, ...]]
) -> str:
    """Return what boards had proven when a board failed, and what not.

    Args:
        failed: The profile whose board failed.
        proven: Finished variants.
        boards: By profile the boards.
    """
    done = [variant.name for variant in proven if variant.boards]
    rest = [name for name in boards if name not in done and name != failed]
    words = [f"not proven: {', '.join([failed, *rest])}"]
    if done:
        words.insert(0, f"proven but for the rehearsal: {', '.join(done)}")
    return "; ".join(words)
