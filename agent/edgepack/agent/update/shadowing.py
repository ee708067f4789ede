"""Shadow mode of the agent: decide to run the previous release during a soak, and word the
result.
"""

from edgepack.agent.state.pointer import Shadow
from edgepack.agent.telemetry.shadowed import Shadowed
from edgepack.agent.update.context import UpdateContext
from edgepack.agent.update.footprint import serving_bytes
from edgepack.text import counted

MEMORY_SHARE = 0.25
"""Of the device's memory, what the release before may take, unless its settings say."""


def plan_shadow(context: UpdateContext) -> tuple[Shadow | None, str]:
    """Return the shadow settings for the release to serve, or the reason for none.

    Weights count by their size on the disk: the running process's memory is watched separately.
    """
    config, journal = context.deps.config, context.journal
    asked, limit, back = config.shadow, config.limits.memory_bytes, journal.back
    if not asked.share:
        return None, "switched off"
    if context.read_manifest().facts.adapter is not None:
        return None, "an adapter runs only in the texts that choose it"
    if back is None or back.digest == context.digest:
        return None, "no other release served before"
    title, size = back.bundle.version, serving_bytes(context.deps.slots, back)
    allowed = asked.memory_bytes or int(MEMORY_SHARE * context.facts.memory_bytes)
    if size > allowed:
        return None, f"{title} takes {size} bytes of memory, {allowed} are allowed"
    others = context.model.others
    taken = sum(others.memory_bytes().values()) + others.coming_bytes() + journal.memory_bytes
    if limit and taken + size > limit:
        return None, f"{title} takes {size} bytes of memory beside {taken}, {limit} are allowed"
    shadow = Shadow(
        bundle=back.bundle,
        variant=back.choice.chosen,
        share=asked.share,
        busy_share=asked.busy_share,
        memory_bytes=allowed,
        spacing_s=asked.spacing_s,
        sequence=context.offer.sequence,
    )
    return shadow, ""


def tell_shadow(context: UpdateContext, shadowed: Shadowed) -> str:
    """Return the shadow result as the end of a sentence; "" if shadow mode is off."""
    back = context.journal.back
    if not context.deps.config.shadow.share:
        return ""
    if back is None or not shadowed.count:
        _, because = plan_shadow(context)
        return f"; no shadow evidence: {shadowed.because or because or 'none was tried'}"
    inferences = counted(shadowed.count, "shadow inference")
    ended = f", then no more: {shadowed.because}" if shadowed.because else ""
    return f"; {shadowed.agreed} of {inferences} agreed with {back.bundle.version}{ended}"
