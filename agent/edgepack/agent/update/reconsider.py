"""Choosing again for a release that serves, when the basis of its choice is gone.

A device may lose a provider or get another ONNX Runtime while its agent is down. The agent compares
the basis of each choice with the device's at its start, and when the same release is ordered again.
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from edgepack.agent.runtime.basis import basis_of, describe_change
from edgepack.agent.runtime.choice import choose, why_not
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.providers import why_nothing_runs
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.context import Evidence, UpdateContext
from edgepack.agent.update.journal import NOTHING_SERVES, Journal
from edgepack.agent.update.transitions import MAX_TEXT
from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, Variant, decode_manifest
from edgepack.bundle.slot import verify_slot
from edgepack.errors import BundleError, DeviceError, EdgepackError
from edgepack.halt import Halt
from edgepack.wire.messages import Choice, RunModel

log = logging.getLogger(__name__)

RETRY_S = 600.0
"""How long the agent waits before it probes again a release of which no variant worked."""

Move = Callable[..., None]
"""Saves a transition: state, reason, fields of the journal."""


def reconsider(context: UpdateContext, evidence: Evidence, move: Move) -> str:
    """Choose again for the release that serves, or served, if its basis is gone.

    While no execution provider is usable, no release can be tried, and all stays unchanged.

    1. The best variant of the same release that works takes over.
    2. If none does, the release that was committed before takes over.
    3. If that does not work either, nothing serves: the pointer is removed, and the files stay.

    Args:
        context: The model's update, at rest.
        evidence: Empty at first.
        move: Saves a transition.

    Returns:
        Why nothing serves, as a sentence; "" if a release serves or nothing was ever committed.

    Raises:
        NotYetError: A probe is under way; call again with the same evidence.
        OSError: Files cannot be read, or pointer or journal cannot be written.
    """
    journal = context.journal
    pointer = context.model.pointer.read() or journal.committed
    facts = context.facts if evidence.checked else context.read_facts()
    now = basis_of(facts, context.deps.config.providers)
    providers = context.deps.config.providers
    if pointer is None or not pointer.committed or pointer.basis == now:
        return ""
    if why_nothing_runs(facts.providers, providers.allow):
        return ""  # `Models` reports it, and has this done again when a provider is back.
    changed = describe_change(pointer.basis, now)
    choice = choose_again(context, pointer, evidence)
    if choice.chosen:  # 1
        _keep(context, pointer, choice, changed, move)
        return ""
    because = f"{pointer.bundle.version} does not work here any more ({changed}): {choice.because}"
    previous = journal.previous
    if previous is not None and previous.digest != pointer.digest:  # 2
        chosen = choose_again(context, previous, evidence)
        if chosen.chosen:
            back = _pointer(context, previous, chosen)
            context.model.pointer.write(back)
            because = f"{previous.bundle.version} serves again: {because}"
            move("ROLLED_BACK", because, committed=back, committed_by=None, previous=pointer)
            return ""
    because = f"{NOTHING_SERVES}{because}"  # 3
    context.model.pointer.remove()
    if (journal.state, journal.because) != ("ROLLED_BACK", because[:MAX_TEXT]):
        move("ROLLED_BACK", because, committed=msgspec.structs.replace(pointer, basis={}))
        if journal.committed_by and _lacks_files(evidence, pointer.digest):
            order = msgspec.structs.replace(journal.committed_by, expires_at=None)
            context.model.store.update(pending=order)
    return because


def is_gone(journal: Journal) -> bool:
    """Check whether the committed release was found not to work, so that nothing serves."""
    return journal.because.startswith(NOTHING_SERVES)


def prove_again(context: UpdateContext, pointer: ActivePointer) -> str:
    """Probe the release that serves once more, because the same release was ordered again.

    If the variant that serves fails, another variant of the release takes over.

    Returns:
        The result, as a sentence.

    Raises:
        NotYetError: A probe is under way.
        DeviceError: No variant of the release works; the pointer is unchanged.
        OSError: Pointer or journal cannot be written.
    """
    evidence, serving = context.scratch.evidence, pointer.choice.chosen
    if not evidence.is_fresh:
        context.deps.tools.forget_verdicts(pointer.digest)
        evidence.is_fresh = True
    first = choose_again(context, pointer, evidence, only=serving)
    if first.chosen:
        return "this bundle serves already"
    choice = choose_again(context, pointer, evidence)
    if not choice.chosen:
        raise DeviceError(f"this bundle cannot be opened here: {choice.because}")
    _switch(context, pointer, choice, f"{serving} failed")
    return f"this bundle serves already, now by {choice.chosen}: {first.because}"


def choose_again(
    context: UpdateContext,
    pointer: ActivePointer,
    evidence: Evidence,
    *,
    only: str = "",
) -> Choice:
    """Probe the variants of a release with present files, and choose among them.

    Args:
        context: The model's update.
        pointer: The release.
        evidence: Evidence so far.
        only: The only variant to probe; "" for all.

    Returns:
        The choice; `chosen` is "" when no variant works.

    Raises:
        NotYetError: A probe is under way.
    """
    deps, digest = context.deps, pointer.digest
    folder = deps.slots.folder(digest)
    try:
        manifest = _read_manifest(context, digest)
    except EdgepackError as error:
        evidence.checked[digest, ""] = error.problem
        return msgspec.structs.replace(
            pointer.choice, chosen="", provider="", because=error.problem, probes=(), rejected={}
        )
    matches = match_variants(manifest, context.facts, deps.config.providers, deps.trust)
    rejected, probes = dict(matches.rejected), []
    for variant in matches.candidates:
        key = (digest, variant.name)
        if only and variant.name != only:
            continue
        if problem := _check(context, evidence, digest, variant):
            rejected[variant.name] = problem
        else:
            if key not in evidence.probes:
                evidence.probes[key] = context.run_in_background(
                    f"probe again {digest} {variant.name}",
                    partial(deps.tools.probe, folder, variant),
                )
            probes.append(evidence.probes[key])
    preference = [variant.name for variant in manifest.variants]
    choice = choose(probes, rejected, context.facts, deps.config.providers, preference)
    return _note_fallback(pointer.choice, choice)


def _keep(
    context: UpdateContext, pointer: ActivePointer, choice: Choice, changed: str, move: Move
) -> None:
    """Serve the release with this choice, also if nothing served before."""
    journal = context.journal
    chosen = _switch(context, pointer, choice, changed)
    if not is_gone(journal):
        return
    because = f"{pointer.bundle.version} serves again ({changed}): {choice.because}"
    offer = journal.offer
    if isinstance(offer, RunModel) and offer.bundle == chosen.bundle:
        move("COMMITTED", because, choice=choice)
    else:
        context.model.store.update(because=because[:MAX_TEXT])


def _switch(
    context: UpdateContext, pointer: ActivePointer, choice: Choice, changed: str
) -> ActivePointer:
    """Write the choice to pointer and journal, and report another variant than before."""
    chosen = _pointer(context, pointer, choice)
    context.model.pointer.write(chosen)
    committed = context.journal.committed
    if committed is not None and committed.digest == chosen.digest:
        context.model.store.update(committed=chosen)
    if choice.chosen == pointer.choice.chosen:
        log.info(
            "model=%s variant=%s is right again: %s", context.model.name, choice.chosen, changed
        )
    else:
        because = f"{choice.chosen} replaces {pointer.choice.chosen} ({changed}): {choice.because}"
        context.note("warning", because)
    return chosen


def _pointer(context: UpdateContext, pointer: ActivePointer, choice: Choice) -> ActivePointer:
    return msgspec.structs.replace(
        pointer,
        choice=choice,
        since=context.deps.clock.wall(),
        committed=True,
        shadow=None,
        basis=basis_of(context.facts, context.deps.config.providers),
    )


def _note_fallback(before: Choice, choice: Choice) -> Choice:
    """Record that a provider which served before does not work any more."""
    is_lost = choice.provider != before.provider and not choice.is_fallback
    works = any(probe.right for probe in choice.probes if probe.provider == before.provider)
    if not choice.chosen or not is_lost or works:
        return choice
    reason = why_not(before.provider, choice.probes, choice.rejected)
    return msgspec.structs.replace(
        choice,
        wanted=choice.wanted or before.provider,
        is_fallback=True,
        because=f"{choice.because}; {before.provider} served before: {reason}",
    )


def _read_manifest(context: UpdateContext, digest: str) -> Manifest:
    content = context.deps.slots.read_file(digest, MANIFEST_FILE)
    if content is None:
        raise BundleError(
            "its manifest is missing", found_in=str(context.deps.slots.folder(digest))
        )
    return decode_manifest(content)


def _check(context: UpdateContext, evidence: Evidence, digest: str, variant: Variant) -> str:
    """Return why a variant's files cannot be used; "" if the files are complete."""
    key = (digest, variant.name)
    folder = context.deps.slots.folder(digest)

    def look(halt: Halt) -> str:
        try:
            verify_slot(folder, digest, variant.name, checkpoint=halt.check)
        except BundleError as error:
            return error.problem
        return ""

    if key not in evidence.checked:
        evidence.checked[key] = context.run_in_background(f"check {digest} {variant.name}", look)
    return evidence.checked[key]


def _lacks_files(evidence: Evidence, digest: str) -> bool:
    return any(problem for (of, _), problem in evidence.checked.items() if of == digest)
