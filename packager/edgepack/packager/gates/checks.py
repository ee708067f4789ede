"""The gates: requirements for publishing a finished variant.

A gate gives a refusal with numbers and a remedy, or None. With `--allow-degraded` the recipe
publishes a refused variant all the same, marked, and agents reject the variant unless configured
otherwise.
"""

from collections.abc import Mapping, Sequence

import msgspec

from edgepack.bundle.manifest import Accuracy, Placement
from edgepack.number_format import format_metric
from edgepack.packager.gates.tolerances import NRMSE_ROOM, TIMES
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.operators import facts
from edgepack.packager.profiles.pass_settings import (
    WIDE_TYPES,
    Float16,
    Lowering,
    Quantize,
    QuantizeWeights,
)
from edgepack.packager.profiles.schema import Preference, Profile
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.wording import count_held_out, toml_key
from edgepack.tasks.plain_error import PlainError

SLOWER_FACTOR = 1.1
"""Only beyond this is a quantized model called slower: medians vary by some percent from run to
run, and the same inputs should give the same bundle."""

FASTER_FACTOR = 1.05
"""By so much a quantized model must be faster where speed is preferred, see `Gates.prefer`."""

LITTLE_SAVED = 0.8
"""Share of the float model's bytes, or of the nodes that stay float, from which on little is saved:
another profile, or the float model, is worth a look."""

HOPELESSLY_SLOW_FACTORS: Mapping[Preference, float] = {"speed": 1.25, "balanced": 1.5}
"""Beyond this, no search for accuracy is worth its time: float nodes will not make up for it. Where
speed is preferred they would have to make it faster than the float model."""

_LEFT_SHOWN = 6
_REASONS_SHOWN = 3


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice about other profiles for a device, if a profile serves a model badly.

    Attributes:
        instead: Recommended profiles, with the reason; "" without a recommendation.
        learnt: Results of other profiles, a sentence each.
    """

    instead: str = ""
    learnt: tuple[str, ...] = ()


_TIME = "a longer --budget, or none: what was tried is kept, and the search goes on from there; "


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a search with a refused best candidate.

    Attributes:
        words: Attempts of the search, several lines.
        is_cut_short: Whether the time limit ended the search.
    """

    words: str
    is_cut_short: bool = False


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Reason against publishing a variant.

    Attributes:
        problem: A sentence with the numbers.
        found_in: Which nodes or candidates.
        remedy: Remedy.
    """

    problem: str
    found_in: str | None
    remedy: str


def check_accuracy(
    profile: Profile,
    verdict: Verdict,
    sample_count: int,
    tried: Tried | None,
    coverage: Sequence[str] = (),
    advice: Advice | None = None,
    *,
    is_lowered: bool = True,
    are_series: bool = False,
) -> Refusal | None:
    """Check the accuracy gate, on held-out samples.

    Args:
        profile: The profile.
        verdict: The variant against the float model.
        sample_count: How many held-out samples, or series.
        tried: Attempts of the search; None if nothing was quantized.
        coverage: Gaps of the calibration samples, which no candidate makes up for.
        advice: Expected results of other profiles for the device; None without alternatives.
        is_lowered: Whether the profile's recipe lowered the variant: more bits do not help a float
            model, or a model quantized by its maker.
        are_series: Whether the verdict is on series of samples.
    """
    if verdict.passed:
        return None
    lowering = profile.lowering if is_lowered else None
    other = _more_bits(lowering) if advice is None else advice.instead
    on = count_held_out(sample_count, are_series=are_series)
    return Refusal(
        problem=f"profile '{profile.name}' keeps {_kept(verdict)}, and the "
        f"budget is {format_metric(verdict.budget)} (float model "
        f"{format_metric(verdict.float_value)}, {on})",
        found_in="\n    ".join(
            (
                *verdict.remarks,
                *coverage,
                *((tried.words,) if tried else ()),
                *(advice.learnt if advice else ()),
            )
        )
        or None,
        remedy=f"{_TIME if tried is not None and tried.is_cut_short else ''}"
        f"{_without_selection(verdict)}{f'{other}; ' if other else ''}"
        f"{_if_no_scores(verdict)}{_in_the_recipe(lowering)}"
        "a lower budget in [gates.accuracy] of a profile "
        "of your own; --allow-degraded builds it marked",
    )


def _more_bits(lowering: Lowering | None) -> str:
    """Return profiles that keep more than this profile; "" if the profile lowers nothing."""
    if lowering is None:
        return ""
    if isinstance(lowering, Quantize) and lowering.activations not in WIDE_TYPES:
        return "a profile with more bits (16-bit activations, fp32)"
    if isinstance(lowering, QuantizeWeights) and lowering.bits == 4:
        return "a profile with more bits (8-bit weights, fp32)"
    return "--profile fp32, which lowers nothing and runs on a device's CPU"


def _in_the_recipe(lowering: Lowering | None) -> str:
    """Return further options of a recipe that lowers the precision; the text ends before an
    alternative.
    """
    if lowering is None:
        return ""
    learns = isinstance(lowering, Quantize | QuantizeWeights)
    share = lowering.max_float_share
    return ("more calibration samples, " if learns else "") + (
        f"max_float_share above {share:g}, or " if share < 1.0 else "or "
    )


def _kept(verdict: Verdict) -> str:
    if verdict.words:
        return verdict.words
    of_output = f" of output '{verdict.output}'" if verdict.output else ""
    expected = f" ({verdict.expectation})" if verdict.is_costly else ""
    return f"{verdict.metric} {format_metric(verdict.value)}{of_output}{expected}"


def _without_selection(verdict: Verdict) -> str:
    """Return the remedy for differing integers: a tail that ranks or selects makes integers of near
    ties.
    """
    differ = [
        f"'{measure.output}'"
        for agreement in verdict.agreements
        for measure in agreement.measures
        if agreement.task == "classification" and measure.value < 1.0 and measure.cost is None
    ]
    if not differ:
        return ""
    return (
        f"where {', '.join(differ)} comes from TopK or NonMaxSuppression, which reorders outputs "
        "whose scores are nearly equal: export the model without that tail, which stays with the "
        "application, or judge it by a --metric of your own; "
    )


def _if_no_scores(verdict: Verdict) -> str:
    """Return the remedy for a row of numbers that was mistaken for scores, such as an embedding."""
    if verdict.metric != "top1_agreement" or verdict.decided is None:
        return ""
    name = verdict.decided.measures[0].output
    return (
        f"[outputs.{toml_key(name)}] with task = 'embedding' (or 'values', 'ignored') in "
        "edgepack.toml if it holds no scores, "
    )


def refuse_weak(profile: Profile, accuracy: Accuracy) -> Refusal:
    """Return the refusal of a variant with a weak verdict."""
    return Refusal(
        problem=f"the verdict on profile '{profile.name}' is weak ({accuracy.metric} "
        f"{format_metric(accuracy.value)}), and --strict was given: {accuracy.weak}",
        found_in=None,
        remedy="settle the doubt by declarations, labels, a metric or more samples, or leave "
        "--strict out",
    )


def check_trial(
    profile: Profile, stand_in: Sequence[PlainError], real: Sequence[PlainError]
) -> Refusal | None:
    """Check that the provider computes the same as the CPU's stand-in, apart from rounding.

    The limits are those of golden outputs, in the size of all samples and of those that ran.

    Args:
        profile: The profile.
        stand_in: The variant on the CPU, unchanged, against the float model: all held-out samples.
        real: The same on the provider: the samples that ran there, in the same order of outputs.
    """
    provider = profile.device.provider
    for expected, got in zip(stand_in, real, strict=True):
        size = max(expected.rms, got.rms)
        if not size or got.worst_rms_error <= NRMSE_ROOM * size:
            continue  # of zeros alone there is nothing to measure an error by
        there, here = got.worst_rms_error / size, expected.worst_rms_error / size
        if there <= TIMES * here + NRMSE_ROOM:
            there, here = got.nrmse, expected.worst_nrmse
            if there <= TIMES * here + NRMSE_ROOM:
                continue
        return Refusal(
            problem=f"{provider} computes output '{got.output}' with an error of {there:.1%} of "
            f"its size, the CPU's stand-in with at most {here:.1%}",
            found_in=f"{profile.name}, run on {provider} here",
            remedy=f"{_other_types(profile)}; --allow-degraded builds it marked",
        )
    return None


def _other_types(profile: Profile) -> str:
    """Return alternatives to operators that a provider computes wrongly."""
    if profile.lowering is None:
        return "export the model with other operators, or a report to the provider's vendor"
    other = f"another profile for this device whose types are not {profile.about.precision}"
    if not isinstance(profile.lowering, Quantize | Float16):
        return other
    tag = profile.lowering.__struct_config__.tag
    return (
        f"{other}, or one of your own with the operators that {profile.device.provider} computes "
        f"wrongly in exclude_ops of its {tag} pass"
    )


def check_placement(
    profile: Profile, placement: Placement, left_nodes: Sequence[UnassignedNode] = ()
) -> Refusal | None:
    """Check the placement gate, if the provider ran on this host.

    Args:
        profile: The profile.
        placement: How many nodes the provider took.
        left_nodes: Nodes that the provider left, with its reasons.
    """
    if not placement.verified or not placement.total:
        return None
    share = placement.taken / placement.total
    if share >= profile.gates.placement_min:
        return None
    left = sorted(placement.left.items(), key=lambda entry: (-entry[1], entry[0]))
    words = ", ".join(f"{count} {op}" for op, count in left[:_LEFT_SHOWN])
    reasons = {
        node.reason: f"{node.name} ({node.op}): {node.reason}"
        for node in reversed(left_nodes)
        if node.reason and facts(node.op).is_conversion != "pair"
    }
    told = list(reversed(reasons.values()))[:_REASONS_SHOWN]
    return Refusal(
        problem=f"{placement.provider} took {placement.taken} of {placement.total} nodes "
        f"({share:.0%}), and profile '{profile.name}' asks for {profile.gates.placement_min:.0%}",
        found_in="\n    ".join((f"left to the CPU: {words}", *told)),
        remedy="export the model without these operators, or lower gates.placement_min in a "
        "profile of your own",
    )


def check_size(profile: Profile, size_bytes: int, float_size_bytes: int) -> Refusal | None:
    """Check the size gate."""
    limit = profile.gates.size_ratio_max
    if not limit or size_bytes <= limit * float_size_bytes:
        return None
    return Refusal(
        problem=f"the variant takes {size_bytes:,} bytes, {size_bytes / float_size_bytes:.0%} of "
        f"the float model's, and profile '{profile.name}' allows {limit:.0%}",
        found_in="gates.size_ratio_max",
        remedy="raise it in a profile of your own"
        + (", or lower max_float_share" if profile.lowering else ""),
    )


def least_speedup(size_share: float, prefer: Preference) -> float | None:
    """Return the least worthwhile speedup of a quantized model over the float model.

    Args:
        size_share: The quantized model's bytes as a share of the float model's.
        prefer: Preference, see `Gates.prefer`.

    Returns:
        The factor; None where its time does not matter.
    """
    if prefer == "device":
        return None
    if prefer == "speed":
        return FASTER_FACTOR
    if size_share > LITTLE_SAVED:
        return SLOWER_FACTOR
    return 1 / SLOWER_FACTOR if prefer == "balanced" else None
