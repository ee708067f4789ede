"""Notes on where a variant was measured and run."""

from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import Evaluator, read_host_facts
from edgepack.packager.runtime.trial import Trial
from edgepack.text import counted


def describe_venue(evaluator: Evaluator, profile: Profile, trial: Trial | None) -> tuple[str, ...]:
    """State the places of a variant's evaluation and runs, and why no board proved it if so.

    Args:
        evaluator, profile, trial: See `_describe_places`.
    """
    unproven = evaluator.venue.unproven
    more = (f"No board that was named proved it ({unproven}).",) if unproven else ()
    return (*_describe_places(evaluator, profile, trial), *more)


def _describe_places(
    evaluator: Evaluator, profile: Profile, trial: Trial | None
) -> tuple[str, ...]:
    """State the places of a variant's evaluation and runs, and the providers that could not run.

    Args:
        evaluator: Where candidates were measured.
        profile: The profile.
        trial: The variant's run on its provider; None where that cannot run here.
    """
    if trial is None:
        return (
            f"Not run on {profile.device.provider} here ({evaluator.venue.because}): accuracy "
            "is measured on the CPU provider, placement is not known." + _toolchain_hint(profile),
        )
    venue, count = evaluator.venue, len(trial.outputs)
    if venue.boards:
        boards = "; ".join(board.words for board in venue.boards)
        return (f"Proven on a board: accuracy, placement and times are from {boards}.",)
    there = f" of its toolchain ({venue.toolchain.words})" if venue.toolchain else ""
    if venue.is_simulated:
        ran = f"the simulator of {profile.device.provider}{there}"
    elif venue.toolchain:
        ran = f"{profile.device.provider}{there}"
    else:
        return ()
    return (
        f"Accuracy is measured on {evaluator.provider}; {counted(count, 'sample')} ran on {ran} "
        "too.",
    )


def _toolchain_hint(profile: Profile) -> str:
    """Return a hint for a host without the provider's package, if the hardware is present."""
    facts = read_host_facts()
    is_here = any(it.name == profile.device.provider and it.available for it in facts.providers)
    if is_here or profile.device.type != "cpu":
        return ""
    return f" --toolchain {profile.name}=PYTHON names an environment that has it."
