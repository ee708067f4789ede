"""Advice about other profiles if a profile serves a model badly.

A profile names alternatives with more bits. More bits need not help: a detector with scores that
power-of-two scales spoil may lose as much with 8 bits of any scale. So an alternative is tested
before advice: its float passes, its first method with every node lowered, evaluated on the samples
for choosing candidates.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.gates.checks import Advice
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.pipeline.candidate_selection import CandidateSelector
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.pipeline.settings_search import run_passes
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import within
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.evaluator import find_venue
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.context import describe_context

_MUCH_LESS = 0.5
"""Share of a profile's loss below which another one will need fewer float nodes."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """Outlook for a profile.

    Attributes:
        name: The profile.
        verdict: On its first method with every node lowered; None where there is none.
        problem: Why there is none; "" where the profile lowers nothing.
    """

    name: str
    verdict: Verdict | None = None
    problem: str = ""


def look_at_alternatives(
    inputs: EvaluationInputs, profile: Profile, resources: Resources, work_dir: Path
) -> tuple[Outlook, ...]:
    """Look at the profiles that a profile names.

    Args:
        inputs: Samples that candidates are made from and evaluated on.
        profile: The profile that serves the model badly.
        resources: Remaining time, and earlier measurements.
        work_dir: Folder for everything that is written.
    """
    context = describe_context(inputs.source, inputs.split, profile, inputs.metric)
    return tuple(
        _look_at(_with_budget(load_profile(name), profile), inputs, resources, context, work_dir)
        for name in profile.gates.alternatives
    )


def _with_budget(other: Profile, profile: Profile) -> Profile:
    """Return a profile with the accuracy budget of another profile."""
    gates = replace(other.gates, accuracy=profile.gates.accuracy)
    return replace(other, gates=gates)


def _look_at(
    other: Profile,
    inputs: EvaluationInputs,
    resources: Resources,
    context: str,
    work_dir: Path,
) -> Outlook:
    if other.lowering is None:
        return Outlook(name=other.name)
    folder = work_dir / f"instead-{other.name}"
    folder.mkdir(parents=True, exist_ok=True)
    progress = within(resources.progress, f"looking at {other.name}")
    try:
        resources.limit.check()
        with resources.limit.profile.interrupting():
            venue = find_venue(other)
            selector = CandidateSelector(
                run_passes(inputs, other, venue, folder, progress),
                other,
                venue,
                inputs,
                resources.conditions(f"{context} {other.sha256}"),
                folder,
                progress,
            )
            verdict = selector.try_first()
    except OutOfTimeError:
        return Outlook(name=other.name, problem="was not looked at: no time was left")
    except BuildError as error:
        return Outlook(name=other.name, problem=f"cannot be built either ({error.problem})")
    return Outlook(
        name=other.name, verdict=verdict, problem="" if verdict else "finds no node to lower"
    )


def advise(outlooks: Sequence[Outlook], found: SearchResult | None) -> Advice:
    """Return the advice about the checked profiles.

    Args:
        outlooks: Results of the profiles.
        found: Attempts of the search for the profile itself.
    """
    own = _all_lowered(found)
    instead, learnt = [], []
    for outlook in outlooks:
        name, verdict = f"--profile {outlook.name}", outlook.verdict
        if verdict is None and not outlook.problem:
            instead.append(
                f"{name}, which lowers no node: its provider rounds by itself, which is not "
                "measured here"
            )
            continue
        if verdict is None:
            learnt.append(f"{name} {outlook.problem}.")
            continue
        words = f"keeps {verdict.what} {verdict.value:.4f}"
        here = f", this one {_value(own, neighbour=verdict)}" if own else ""
        if verdict.passed:
            instead.append(f"{name}, which {words} with every node quantized")
        elif own and 1.0 - verdict.spare <= _MUCH_LESS * (1.0 - own.spare):
            instead.append(
                f"{name}, which may need fewer float nodes: it {words} with every node "
                f"quantized{here}"
            )
        else:
            learnt.append(
                f"{name} gives no reason to expect more: it {words} with every node "
                f"quantized{here}."
            )
    return Advice(instead=", or ".join(instead), learnt=tuple(learnt))


def _value(own: Verdict, *, neighbour: Verdict) -> str:
    """Return a verdict's value, with its metric if other than the neighbour's."""
    value = f"{own.value:.4f}"
    return value if own.what == neighbour.what else f"{own.what} {value}"


def _all_lowered(found: SearchResult | None) -> Verdict | None:
    """Return the best verdict on a candidate without a promoted node."""
    whole = [
        candidate.verdict
        for candidate in (found.candidates if found else ())
        if not candidate.float_nodes and not candidate.high_precision_nodes
    ]
    return max(whole, key=lambda verdict: verdict.spare, default=None)
