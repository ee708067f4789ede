"""Validation on held-out samples and on the provider; the search continues after a failure.

The search chooses by few samples, and the best of many candidates is partly the luckiest. So
held-out samples evaluate the choice, and after a failure the search continues with a stricter
target (a small miss makes a slightly stricter target: `search_target`), at most three times. A
candidate that passes only by the tolerated single mismatch leads to another search, too, at most
twice: 1 of 29 may stand for 1 in a hundred or for 1 in ten. So does a candidate with a narrow
margin, which 1 in five similar candidates would miss (`gates.proof`), and a candidate with full
agreement on all samples but an expected loss on others. If the next candidate fails, the previous
candidate is kept. Certainty must not cost all savings of quantization: if a surer candidate has the
bytes and the multiply-accumulates of the float model, or gives way to the float model, the previous
candidate is kept. Likewise where the provider computes something else than the CPU's stand-in.

If the first candidate won a race against the candidate with the profile's own operators, and
fails, then that candidate is validated before the search continues: it is slower, but it needs no
node that stays float.

If every candidate fails, and the profile allows, the float model is published.

The search learns from the held-out samples up to three times a failure and its size. A candidate
that is truly below the budget has at most five chances to pass by luck, and each candidate must be
nearer to the float model than the previous candidate. Held-out samples never compare two
candidates.
"""

from msgspec.structs import replace

from edgepack.number_format import format_metric
from edgepack.packager.pipeline.savings_summary import saves_nothing
from edgepack.packager.pipeline.selection import SearchedCombination, describe_float_instead
from edgepack.packager.pipeline.settings_search import SettingsSearch
from edgepack.packager.pipeline.variant_validation import ValidatedCombination, VariantValidator
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.search.search_target import (
    MOST_TIMES,
    SearchTarget,
    StricterTarget,
    stricter_target,
)

_TURNS_TO_BE_SURE = 2
"""The last turn is for what is refused: what passes, surely or not, is taken."""

_BACK = "They refuse what was to be surer: the candidate before is kept, which they pass."

_BACK_TO_BETTER = (
    "What was to be surer keeps less on the held-out samples: the candidate before is kept."
)

_NO_TIME = "The time was used up before the held-out samples judged it: the one before is kept."

_RELAXED = "None does: half of what the most accurate candidate gains is taken for enough."


def search_until_valid(
    search: SettingsSearch, searched: SearchedCombination, validator: VariantValidator
) -> ValidatedCombination:
    """Validate a candidate, and continue the search while held-out samples or provider fail.

    Args:
        search: Searches on.
        searched: First result of the search.
        validator: Judges by held-out samples, and runs on the provider.

    Returns:
        Candidate for the gates, within the budget or not.

    Raises:
        BuildError: A candidate cannot be made or run.
    """
    limit = validator.limit
    validated = validator.validate(search, searched, (), limit.build)
    if not _passes(validated):
        validated = _validate_beaten(search, validated, validator)
    stricter: StricterTarget | None = None
    passed: ValidatedCombination | None = None
    for turn in range(MOST_TIMES):
        if _passes(validated) and _has_as_much_to_spare(validated, passed):
            passed = validated
        objection = _objection(turn, validated)
        if not objection:
            break
        stricter = _stricter_target(turn, validated, stricter)
        validated = validated.with_note(_describe_target(objection, stricter))
        further = _search_further(search, validated, turn, stricter)
        if further is None:
            validated = validated.with_note(_describe_standstill(search))
            break
        found, notes = further
        validated = replace(validated, notes=(*validated.notes, *notes))
        if _passes(validated) and saves_nothing(found):
            validated = replace(
                validated.with_note(_describe_surer(found)),
                searched=validated.searched.with_attempts_of(found),
            )
            break
        try:
            validated = validator.validate(search, found, validated.notes, limit.profile)
        except OutOfTimeError:  # the one before has its verdict
            validated = validated.with_note(_NO_TIME)
            validator.write_again(validated)
            break
    is_last_taken = _passes(validated) and (
        validated.is_sure or _has_as_much_to_spare(validated, passed)
    )
    if passed is not None and not is_last_taken:
        why = _BACK_TO_BETTER if _passes(validated) else _BACK
        before = passed.searched.with_attempts_of(validated.searched)
        validated = replace(passed, searched=before, notes=(*validated.notes, why))
        validator.write_again(validated)
    return _finish(search, validated, validator)


def _validate_beaten(
    search: SettingsSearch, refused: ValidatedCombination, validator: VariantValidator
) -> ValidatedCombination:
    """Validate the candidate that lost the race of the scopes to a rejected candidate."""
    beaten = search.take_beaten(refused.searched)
    if beaten is None:
        return refused
    note = f"{_objection(0, refused)}: the candidate that it beat in the race is validated."
    try:
        return validator.validate(search, beaten, (*refused.notes, note), validator.limit.profile)
    except OutOfTimeError:
        validator.write_again(refused)
        return refused.with_note(_NO_TIME)


def _finish(
    search: SettingsSearch, validated: ValidatedCombination, validator: VariantValidator
) -> ValidatedCombination:
    """Return the float model if every lowered model fails; run models that have not run yet."""
    if _passes(validated) and validated.provider_run is None and not validated.is_out_of_time:
        validated = validator.run_on_provider(search, validated)  # where boards may yet refuse
    searched = validated.searched
    may_be_float = "inaccurate" in searched.profile.gates.float_instead
    if not _passes(validated) and searched.selection.is_lowered and may_be_float:
        by_provider = validated.is_refused_by_provider
        who = "its provider refuses" if by_provider else "the held-out samples refuse"
        because = f"{who} every quantized one"
        notes = (*validated.notes, describe_float_instead(because))
        float_model = searched.with_float_model(because)
        validated = validator.validate(search, float_model, notes, validator.limit.build)
    if validated.provider_run is None and not validated.is_out_of_time:
        validated = validator.run_on_provider(search, validated)
    if validated.inspection is None:
        validated = replace(validated, inspection=validator.inspect(validated.searched))
    return validated


def _passes(validated: ValidatedCombination) -> bool:
    return validated.verdict.passed and not validated.is_refused_by_provider


def _has_as_much_to_spare(
    validated: ValidatedCombination, before: ValidatedCombination | None
) -> bool:
    """Return True if a candidate's margin on the held-out samples is at least the previous
    candidate's.
    """
    return before is None or validated.verdict.spare >= before.verdict.spare


def _objection(turn: int, validated: ValidatedCombination) -> str:
    """Return why a candidate is not accepted; "" if accepted, or if no nearer candidate can
    follow.
    """
    found, verdict = validated.searched.selection.found, validated.verdict
    if found is None or not validated.searched.selection.can_improve:
        return ""
    if turn >= _TURNS_TO_BE_SURE and verdict.passed:
        return ""
    words, run = found.best.words, validated.provider_run
    if not validated.is_sure:
        return (
            f"The held-out samples {'are not sure of' if verdict.passed else 'refuse'} {words} "
            f"({verdict.found}, the budget is "
            f"{format_metric(verdict.budget)})"
        )
    if run is None or run.refusal is None:
        return ""
    return f"On its provider {words} is off ({run.refusal.problem})"


def _stricter_target(
    turn: int, validated: ValidatedCombination, before: StricterTarget | None
) -> StricterTarget:
    found = validated.searched.selection.found
    if found is None:
        raise ValueError("nothing was lowered, so nothing can be nearer")
    missed = None if validated.verdict.passed else validated.verdict
    return stricter_target(turn, found.best.verdict, missed, before)


def _search_further(
    search: SettingsSearch, refused: ValidatedCombination, turn: int, stricter: StricterTarget
) -> tuple[SearchedCombination, tuple[str, ...]] | None:
    """Search with a stricter target, and return the result with notes; None without a new
    candidate.
    """
    further = search.search_further(refused.searched, stricter.target)
    if further is None:
        return None
    if turn < _TURNS_TO_BE_SURE:
        relaxed = _relax(search, refused.searched, further, stricter.target)
        if relaxed is not None:
            return relaxed, (_RELAXED,)
    return further, ()


def _relax(
    search: SettingsSearch,
    refused: SearchedCombination,
    further: SearchedCombination,
    target: SearchTarget,
) -> SearchedCombination | None:
    """Return a candidate between a rejected candidate and the most accurate candidate."""
    before, after = refused.selection.found, further.selection.found
    if before is None or after is None:
        return None
    best = after.best.verdict
    if target.is_met(best) or not best.passed:
        return None
    return search.search_further(further, target.relaxed(before.best.verdict, best))


def _describe_target(objection: str, stricter: StricterTarget) -> str:
    return (
        f"{objection}: the search went on for a candidate that leaves "
        f"{stricter.target.reserve:.0%} of the budget and makes {stricter.share:.0%} of its error"
        f"{', in proportion to the miss' if stricter.is_in_proportion else ''}."
    )


def _describe_standstill(search: SettingsSearch) -> str:
    """Return why a continued search found nothing new."""
    if search.selector.is_out_of_time:
        return "Its time was used up before it found a candidate nearer to the float model."
    return "It found no candidate nearer to the float model."


def _describe_surer(further: SearchedCombination) -> str:
    found = further.selection.found
    words = found.best.words if found else ""
    return (
        f"What may be surer saves nothing ({words}): the candidate before is kept, which the "
        "held-out samples pass. More of them would tell how sure it is."
    )
