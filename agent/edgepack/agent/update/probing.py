"""Proving a bundle on this device: the actions of VERIFIED, STAGED and PROBING."""

from edgepack.agent.runtime.bases import base_name
from edgepack.agent.runtime.choice import choose
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.remembering import pass_over

_NOT_ALLOWED = (
    "the bundle's own hooks do not run: this device's settings do not allow it (hooks.from_bundles)"
)


def before_staging(context: UpdateContext) -> Step:
    """Ask the hooks, the bundle's own included: the bundle's files were verified."""
    if not context.journal.was_staged:
        context.model.store.update(was_staged=True)
        if not context.deps.config.hooks.from_bundles and context.bundle_hooks().is_dir():
            context.note("hook", _NOT_ALLOWED)
    return context.run_hooks("staged", "before") or Ended(
        outcome="success", because="the hooks let it be staged"
    )


def after_staging(context: UpdateContext) -> Step:
    """Ask the hooks once more, before hardware is touched."""
    if held_up := context.run_hooks("staged", "after"):
        return held_up
    if plan := context.journal.firmware:
        noun = "agent" if context.is_of_agent else "firmware"
        return Ended(outcome="firmware", because=f"staged, with {noun} {plan.version}")
    return Ended(outcome="success", because="staged, to be probed")


def probe(context: UpdateContext) -> Step:
    """Probe a single candidate per call, so that a newer offer need not wait for all."""
    journal, probes = context.journal, context.scratch.probes
    manifest = context.read_manifest()
    folder, left = context.deps.slots.folder(context.digest), pass_over(journal, context.digest)
    candidates = [name for name in journal.candidates if name not in left] or journal.candidates
    if len(probes) < len(candidates):
        name = candidates[len(probes)]
        variant = manifest.variant(name)
        probes.append(
            context.run_in_background(
                f"probe {name}", lambda halt: context.deps.tools.probe(folder, variant, halt)
            )
        )
        return Wait(seconds=0.0)
    preference = [variant.name for variant in manifest.variants]
    rejected = journal.rejected | {
        name: why for name, why in left.items() if name not in candidates
    }
    choice = choose(probes, rejected, context.facts, context.deps.config.providers, preference)
    if not choice.chosen:
        return Ended(outcome="failure", because=choice.because)
    context.probed_basis = context.basis(base_name(manifest))
    pointer = context.model.pointer.read()
    # A bundle that serves is fetched again when its files have changed.
    is_way_back = pointer is not None and (pointer.committed or pointer.digest != context.digest)
    back = pointer if is_way_back else None
    is_compared = context.offer.shadow is not None and not context.offer.rollback
    is_compared = is_compared and manifest.facts.adapter is None
    has_other = back is not None and back.digest != context.digest
    return Ended(
        outcome="shadow" if is_compared and has_other else "success",
        because=choice.because,
        changes={"choice": choice, "back": back},
    )
