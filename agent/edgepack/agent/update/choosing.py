"""Choosing among the variants of a release whose files are here, by probes of their own."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from edgepack.agent.runtime.choice import choose, why_not
from edgepack.agent.runtime.matching import match_here
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.context import Evidence, UpdateContext
from edgepack.agent.update.journal import NOTHING_SERVES, Journal
from edgepack.agent.update.remembering import name_pointer, name_variant
from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, decode_manifest
from edgepack.bundle.slot import verify_variant
from edgepack.durable import disk_remedy
from edgepack.errors import BundleError, DeviceError, EdgepackError
from edgepack.halt import Halt
from edgepack.wire.reports import Choice

log = logging.getLogger(__name__)

NONE_LEFT: Mapping[str, str] = {}


def is_gone(journal: Journal) -> bool:
    """Check whether the committed release was found not to work, so that nothing serves."""
    return journal.because.startswith(NOTHING_SERVES)


def prove_again(context: UpdateContext, pointer: ActivePointer) -> str:
    """Probe the release that serves once more, because the same release was ordered again.

    If the variant fails, another variant of the release takes over.

    Args:
        context: The model's update.
        pointer: The release, with the variant that should serve.

    Returns:
        The result, as a sentence.

    Raises:
        NotYetError: A probe is under way.
        DeviceError: No variant of the release works; the pointer is unchanged.
        OSError: Pointer or journal cannot be written.
    """
    evidence, wanted = context.scratch.evidence, pointer.choice.chosen
    active = context.model.pointer.read()
    probe_afresh(context, evidence, pointer)
    first = choose_again(context, pointer, evidence, only=wanted)
    if first.chosen:
        if active is not None and name_pointer(active) != name_pointer(pointer):
            switch_variant(context, active, pointer.choice)
            report_switch(context, active, pointer.choice, "its files can be read again")
        return "this bundle serves already"
    choice = choose_again(context, pointer, evidence)
    if not choice.chosen:
        raise DeviceError(f"this bundle cannot be opened here: {choice.because}")
    switch_variant(context, pointer, choice)
    report_switch(context, pointer, choice, f"{wanted} failed")
    return f"this bundle serves already, now by {choice.chosen}: {first.because}"


def probe_afresh(context: UpdateContext, evidence: Evidence, *releases: ActivePointer) -> None:
    """Forget earlier verdicts on these releases, once for this evidence."""
    if not evidence.is_fresh:
        for release in releases:
            context.deps.tools.forget_verdicts(release.digest)
        evidence.is_fresh = True


def choose_again(
    context: UpdateContext,
    pointer: ActivePointer,
    evidence: Evidence,
    *,
    only: str = "",
    left: Mapping[str, str] = NONE_LEFT,
) -> Choice:
    """Probe the variants of a release with present files, and choose among them.

    Args:
        context: The model's update.
        pointer: The release.
        evidence: Evidence so far.
        only: The only variant to probe; "" for all.
        left: Variants to pass over, as `name_variant` names them, each with the reason.

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
    providers = deps.config.providers
    matches = match_here(manifest, context.facts, providers, deps.trust, deps.state_dir)
    rejected, probes = dict(matches.rejected), []
    for variant in matches.candidates:
        key = (digest, variant.name)
        if only and variant.name != only:
            continue
        if because := left.get(name_variant(digest, variant.name)):
            rejected[variant.name] = f"the watch left it: {because}"
        elif problem := check_files(context, evidence, digest, variant.name):
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


def switch_variant(context: UpdateContext, pointer: ActivePointer, choice: Choice) -> ActivePointer:
    """Write a choice to pointer and journal."""
    chosen = repoint(context, pointer, choice)
    context.model.pointer.write(chosen)
    committed = context.journal.committed
    if committed is not None and committed.digest == chosen.digest:
        context.model.store.update(committed=chosen)
    return chosen


def report_switch(
    context: UpdateContext, pointer: ActivePointer, choice: Choice, changed: str
) -> None:
    """Report another variant than before."""
    if choice.chosen == pointer.choice.chosen:
        log.info(
            "model=%s variant=%s is right again: %s", context.model.name, choice.chosen, changed
        )
    else:
        because = f"{choice.chosen} replaces {pointer.choice.chosen} ({changed}): {choice.because}"
        context.note("warning", because)


def repoint(context: UpdateContext, pointer: ActivePointer, choice: Choice) -> ActivePointer:
    """Return the pointer of a committed release with another choice, made now."""
    return msgspec.structs.replace(
        pointer,
        choice=choice,
        since=context.deps.clock.wall(),
        committed=True,
        shadow=None,
        basis=context.basis(pointer.base),
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
    """Return the manifest of a slot.

    Raises:
        BundleError: It is missing or damaged, or cannot be read for a minute.
        OSError: The disk cannot read it now.
    """
    try:
        content = context.deps.slots.read_file(digest, MANIFEST_FILE)
    except OSError as error:
        if not context.deps.slots.note_unreadable(digest, context.now()):
            raise
        raise BundleError(describe_unreadable(error)) from error
    if content is None:
        raise BundleError(
            "its manifest is missing", found_in=str(context.deps.slots.folder(digest))
        )
    return decode_manifest(content)


def check_files(context: UpdateContext, evidence: Evidence, digest: str, variant: str) -> str:
    """Return why a variant's own files cannot be used; "" if the files are complete.

    Damage of another variant of the same slot is no obstacle. Files that cannot be read for a
    minute count as damaged.

    Raises:
        NotYetError: The files are being read.
        OSError: The disk cannot read the files now.
    """
    key = (digest, variant)
    folder = context.deps.slots.folder(digest)

    def look(halt: Halt) -> str:
        try:
            verify_variant(folder, digest, variant, checkpoint=halt.check)
        except BundleError as error:
            return error.problem
        return ""

    if key not in evidence.checked:
        evidence.checked[key] = read_slot(context, digest, f"check {digest} {variant}", look)
    return evidence.checked[key]


def read_slot(context: UpdateContext, digest: str, title: str, look: Callable[[Halt], str]) -> str:
    """Return the fault that `look` finds in a slot in the background; "" without a fault.

    Raises:
        NotYetError: The slot is being read.
        OSError: The disk cannot read the slot now.
    """
    try:
        return str(context.run_in_background(title, look))
    except OSError as error:
        if not context.deps.slots.note_unreadable(digest, context.now()):
            raise
        return describe_unreadable(error)


def describe_unreadable(error: OSError) -> str:
    """Return the fault of files that a disk fails to read for long, as a sentence."""
    return f"it cannot be read: {error.strerror or error} ({disk_remedy(error)})"


def lacks_files(evidence: Evidence, digest: str) -> bool:
    """Check whether files of a release were found missing or changed."""
    return any(problem for (of, _), problem in evidence.checked.items() if of == digest)
