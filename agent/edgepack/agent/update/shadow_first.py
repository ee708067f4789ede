"""Comparison of the next release with the serving release before a switch: the action of SHADOWING.

The serving release answers all requests. A process next to the application computes some of the
inferences with the next release, and the counts decide whether the device switches.
"""

import math

import msgspec

from edgepack.agent.state.pointer import ActivePointer, Shadow
from edgepack.agent.telemetry.readings import available_bytes
from edgepack.agent.telemetry.shadowed import Shadowed, add_up
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.observing import observe_serving, why_left
from edgepack.agent.update.shadowing import MEMORY_SHARE
from edgepack.agent.watch.evidence import TOLERATED_FAILURES
from edgepack.agent.watch.ledger import Ledger
from edgepack.agent.watch.shares import log_evidence
from edgepack.bundle.slot import check_presence
from edgepack.errors import DeviceError

LOOK_S = 1.0
ALPHA = 5e-4
"""Probability that a release at the limit is rolled back, for independent pairs."""
FINE_ALPHA = 0.05
"""Probability that a release that differs by `FINE_TIMES` the limit is accepted."""
FINE_TIMES = 2.5
FAILURES_FINE = 0.05
MOST_SLOW = 0.5
"""Share of slow inferences that may be chance."""
MOST_PAIRS = 1000
"""A release that was not rolled back by so many pairs is accepted."""
PATIENCE_S = 3600.0
"""Limit of a comparison whose order has no deadline."""


def shadow_first(context: UpdateContext) -> Step:
    """Let the next release compute real inferences next to the serving release, and judge it."""
    scratch, offer = context.scratch, context.offer
    pointer = context.model.pointer.read()
    if offer.shadow is None or pointer is None:
        return Ended(outcome="success", because="there is nothing to compare with")
    if scratch.soak_from is None:
        _begin(context, pointer)
        scratch.soak_from = context.now()
    if scratch.ledger is None:
        key = (pointer.digest, pointer.choice.chosen)
        scratch.ledger = Ledger(*key, context.deps.config.watch.interval_s, since=scratch.soak_from)
    collected = context.model.collect()
    scratch.shadowed = add_up(scratch.shadowed, collected.shadowed)
    for window in collected.telemetry:
        scratch.ledger.add(window, now=context.now(), wall=context.deps.clock.wall())
    seen = scratch.shadowed.get(context.digest, Shadowed()).of_order(offer.sequence)
    title = pointer.bundle.version
    told = describe(seen, title)
    if seen.because:
        return Ended(outcome="failure", because=f"shadow first: {seen.because}{told}")
    serving = observe_serving(context, scratch.ledger, since=scratch.soak_from)
    if because := why_left(serving):
        return Ended(outcome="failure", because=f"shadow first: {title}, which serves: {because}")
    if because := why_rolled_back(seen, offer.shadow, title):
        return Ended(outcome="failure", because=f"shadow first: {because}")
    if is_fine(seen, offer.shadow):
        return Ended(outcome="success", because=f"shadow first{told}")
    if (spent_s := context.now() - scratch.soak_from) >= _patience_s(context):
        held = sum(one.model == context.model.name for one in context.deps.tools.holders().held)
        holders = "" if held else "; no process holds the model"
        return Ended(
            outcome="failure",
            because=f"shadow first: undecided after {spent_s:.0f} s{told}{holders}",
        )
    return Wait(seconds=LOOK_S, because=_describe_progress(seen.spaced))


def _describe_progress(pairs: int) -> str:
    """Return the progress in powers of ten, so that few messages report the progress."""
    if pairs == 0:
        return ""
    least = 10 ** (len(str(pairs)) - 1)
    return f"shadow first: at least {least} of at most {MOST_PAIRS} spaced inferences are compared"


def why_rolled_back(seen: Shadowed, limit: float, title: str) -> str:
    """Return why the next release must not serve; "" without a reason.

    Args:
        seen: Its shadow inferences.
        limit: Share of answers that may differ; 1 compares no answers.
        title: The serving release, in words.
    """
    of = f"of {seen.spaced} spaced inferences"
    kinds = (
        (seen.spaced_failed, TOLERATED_FAILURES, "failed or gave NaN or infinity"),
        (seen.spaced - seen.spaced_agreed, limit, f"differ from {title}"),
        (seen.spaced_slow, MOST_SLOW, f"were too slow beside {title}"),
    )
    for count, most, kind in kinds:
        if count > most * seen.spaced and _is_proven(count, seen.spaced, most, ALPHA):
            return f"{count} {of} {kind}, beyond doubt more than {most:.3g}"
    return ""


def is_fine(seen: Shadowed, limit: float) -> bool:
    """Check whether the next release may serve: fewer failures and differences than would matter.

    Args:
        seen: Its shadow inferences.
        limit: Share of answers that may differ; 1 compares no answers.
    """
    if seen.spaced >= MOST_PAIRS:
        return True
    worked, agreed = seen.spaced - seen.spaced_failed, seen.spaced_agreed
    return (
        seen.spaced_slow <= MOST_SLOW * seen.spaced
        and _is_proven(worked, seen.spaced, 1 - FAILURES_FINE, FINE_ALPHA)
        and (
            FINE_TIMES * limit >= 1
            or _is_proven(agreed, seen.spaced, 1 - FINE_TIMES * limit, FINE_ALPHA)
        )
    )


def describe(seen: Shadowed, title: str) -> str:
    """Return the counts as the end of a sentence."""
    return f"; {seen.spaced_agreed} of {seen.spaced} spaced inferences agreed with {title}"


def why_no_room(context: UpdateContext, size_bytes: int) -> str:
    """Return why two releases do not fit into memory; "" if both fit.

    Weights count by their size on the disk: the running process's memory is watched separately.

    Args:
        context: The model's update.
        size_bytes: Size of the next release's variant.
    """
    config, others = context.deps.config, context.model.others
    allowed, limit = _allowed_bytes(context), config.limits.memory_bytes
    if size_bytes > allowed:
        return f"a second release takes {size_bytes} bytes of memory, {allowed} are allowed"
    free = available_bytes()
    if free is not None and size_bytes > free:
        return f"a second release takes {size_bytes} bytes of memory, {free} are free"
    taken = sum(others.memory_bytes().values()) + others.coming_bytes()
    taken += context.serving_bytes()
    if limit and taken + size_bytes > limit:
        return (
            f"a second release takes {size_bytes} bytes of memory beside {taken}, "
            f"{limit} are allowed"
        )
    return ""


def end_shadow_first(context: UpdateContext) -> None:
    """Take the next release out of the pointer of the serving release.

    Raises:
        OSError: The pointer cannot be written.
    """
    pointer = context.model.pointer.read()
    shadow = pointer.shadow if pointer else None
    if pointer and shadow and shadow.is_next and shadow.bundle.digest == context.digest:
        context.model.pointer.write(msgspec.structs.replace(pointer, shadow=None))


def _begin(context: UpdateContext, pointer: ActivePointer) -> None:
    """Name the next release in the pointer of the serving release.

    Raises:
        DeviceError: There is no memory for two releases, or files of the next one are missing.
    """
    choice, offer, config = context.journal.choice, context.offer, context.deps.config
    if choice is None:
        raise DeviceError("the journal has no choice of a variant to compare")
    size_bytes = context.read_manifest().memory_bytes(choice.chosen)
    if because := why_no_room(context, size_bytes):
        raise DeviceError(f"shadow first: {because}")
    check_presence(context.deps.slots.folder(context.digest), context.digest, choice.chosen)
    context.model.collect()  # What was said before is not about this comparison.
    own, lets_pass = config.watch.slowdown, offer.max_slowdown
    shadow = Shadow(
        bundle=offer.bundle,
        variant=choice.chosen,
        is_next=True,
        share=config.shadow.share or 1.0,
        busy_share=config.shadow.busy_share,
        memory_bytes=_allowed_bytes(context),
        spacing_s=config.shadow.spacing_s,
        slow_times=max(own, lets_pass) if own and lets_pass is not None else 0.0,
        sequence=offer.sequence,
    )
    if pointer.shadow != shadow:
        context.model.pointer.write(msgspec.structs.replace(pointer, shadow=shadow))


def _allowed_bytes(context: UpdateContext) -> int:
    return context.deps.config.shadow.memory_bytes or int(MEMORY_SHARE * context.facts.memory_bytes)


def _patience_s(context: UpdateContext) -> float:
    """Return the limit of the comparison: what the deadline leaves without the soak."""
    offer = context.offer
    if offer.deadline_s is None:
        return PATIENCE_S
    began_s = context.now() - (context.scratch.soak_from or 0.0)
    spent_s = max(0.0, context.deps.clock.wall() - context.journal.taken_at) - began_s
    return max(0.0, offer.deadline_s - offer.soak_s - spent_s)


def _is_proven(count: int, trials: int, limit: float, alpha: float) -> bool:
    return trials > 0 and log_evidence(count, trials, limit) >= -math.log(alpha)
