"""Prepares a profile's model in each combination that is searched, and keeps the cheapest.

1. For each combination: the float passes, then a choice between lowered and float (`choosing`).
2. Of all of them one is kept (`select_cheapest`).
"""

from pathlib import Path

import msgspec

from edgepack.errors import BuildError
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.pipeline.candidate_selection import CandidateSelector
from edgepack.packager.pipeline.prepared_combination import SearchedCombination
from edgepack.packager.pipeline.select_cheapest import select_cheapest, with_whole_search
from edgepack.packager.pipeline.selection import EvaluationInputs, PreparedFloat
from edgepack.packager.profiles.pass_settings import Lowering
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import Evaluator, Venue
from edgepack.packager.search.candidates import Demand
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.context import describe_context
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.time_limit import OutOfTimeError, TimeLimit
from edgepack.packager.search.tries import Conditions
from edgepack.packager.source.model import SourceModel


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for one profile, and with what.

    Attributes:
        combinations: At least one, in the order to try.
        limit: Ends the search in time.
        journal: What was measured before.
    """

    combinations: tuple[Combination, ...]
    limit: TimeLimit
    journal: Journal


def plan_of(profile: Profile) -> SearchPlan:
    """A plan that tries a profile as it stands, without a limit and without a journal."""
    return SearchPlan(
        combinations=(Combination(words="", profile=profile),),
        limit=TimeLimit(None),
        journal=Journal(None),
    )


def search_settings(
    source: SourceModel,
    plan: SearchPlan,
    evaluation: EvaluationInputs,
    *,
    venue: Venue,
    work_dir: Path,
) -> SearchedCombination:
    """Prepares every combination and keeps the cheapest; see the steps above.

    Args:
        source: The source model.
        plan: What to try.
        evaluation: What candidates are made and judged with.
        venue: Where the profile can run here.
        work_dir: Folder for everything that is written.

    Raises:
        BuildError: A pass failed or a candidate cannot be made or run, in every combination.
    """
    searched: list[SearchedCombination] = []
    skipped: list[str] = []
    failed: list[BuildError] = []
    prepared: dict[bytes, PreparedFloat] = {}
    for number, combination in enumerate(plan.combinations, start=1):
        profile = combination.profile
        folder = work_dir / f"combination-{number}" if combination.words else work_dir
        folder.mkdir(parents=True, exist_ok=True)
        key = _float_passes(profile)
        evaluator = Evaluator(profile, venue)
        try:
            plan.limit.check()
            if key not in prepared:
                prepared[key] = run_passes(source, profile, evaluation, folder)
            selector = CandidateSelector(
                prepared=prepared[key],
                profile=profile,
                evaluator=evaluator,
                evaluation=evaluation,
                conditions=Conditions(
                    limit=plan.limit,
                    journal=plan.journal,
                    context=describe_context(source, evaluation.split, profile, evaluation.metric),
                    label=combination.words,
                ),
                work_dir=folder,
            )
            chosen = selector.choose(Demand())
        except OutOfTimeError:
            skipped.append(f"no time was left for {combination.words}")
            continue
        except BuildError as error:
            failed.append(error)
            skipped.append(f"{combination.words} cannot be built ({error.problem})")
            continue
        searched.append(
            SearchedCombination(
                combination=combination,
                evaluator=evaluator,
                prepared=prepared[key],
                chosen=chosen,
                selector=selector,
            )
        )
    if not searched:
        raise failed[0]
    return with_whole_search(select_cheapest(searched), searched, skipped)


def _float_passes(profile: Profile) -> bytes:
    entries = [entry for entry in profile.passes if not isinstance(entry, Lowering)]
    return msgspec.json.encode((entries, profile.limits))


def run_passes(
    source: SourceModel, profile: Profile, evaluation: EvaluationInputs, folder: Path
) -> PreparedFloat:
    """The float model after a profile's float passes.

    Args:
        source: The source model.
        profile: The profile.
        evaluation: Has the samples that passes may look at.
        folder: Where it is written; it must exist.

    Raises:
        BuildError: A pass failed.
    """
    context = PassContext(
        profile_name=profile.name,
        limits=profile.limits,
        samples=evaluation.split.calibration,
        work_dir=folder,
    )
    passed = run_float_passes(source.model, profile, context, evaluation.progress)
    path = folder / "prepared.onnx"
    save_model(passed.model, path)
    held = hold_weights(passed.model, folder / "prepared.weights")
    return PreparedFloat(model=held, path=path, notes=passed.notes)
