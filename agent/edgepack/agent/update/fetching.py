"""Judging an offer and fetching its files: the actions of OFFERED and DOWNLOADING."""

import logging
from collections.abc import Mapping
from pathlib import Path

from edgepack.agent.runtime.bases import find_base
from edgepack.agent.runtime.matching import match_here
from edgepack.agent.runtime.plain_files import check_readable
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.manifest_download import ManifestDownload
from edgepack.agent.transfer.patching import patch, useful_deltas
from edgepack.agent.update.ahead import describe_fallback, describe_taken, take_from_sources
from edgepack.agent.update.choosing import prove_again
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.damage import find_fault, serve_last_good
from edgepack.agent.update.firmware import plan_firmware
from edgepack.agent.update.footprint import serving_bytes
from edgepack.agent.update.journal import FirmwarePlan
from edgepack.agent.update.offer import (
    check_identity,
    check_memory,
    check_release,
    check_room,
    check_time,
    find_too_large,
    is_active,
)
from edgepack.agent.update.shadow_first import why_no_room
from edgepack.bundle.chunks import raise_disk_fault
from edgepack.bundle.links import find_links
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    FileEntry,
    Manifest,
    Variant,
)
from edgepack.bundle.shared_files import is_needed
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import BundleError, DeviceError
from edgepack.halt import Halt

log = logging.getLogger(__name__)

MEMORY_WAIT_S = 1.0
READ_AGAIN_S = 30.0
"""Seconds until chunks that the disk failed to read are read again, while nobody sends them."""


def judge_offer(context: UpdateContext) -> Step:
    """Judge an offer; nothing is written before all is found right.

    1. Time, release, and whether there is anything to do.
    2. The device's hooks may refuse before anything is fetched.
    3. Manifest and signature are read from a slot or received.
    4. A trusted key signed both, the bundle is the offered bundle, and this device can decrypt the
      bundle.
    5. A variant and the firmware fit this device, no provider rejects the variant's precompiled
      context, and there is free space next to all other models.
    6. The hooks have the last word.
    """
    deps, model, offer = context.deps, context.model, context.offer
    # 1
    check_time(offer, deps.clock.wall())
    pointer = model.pointer.read()
    committed, previous = context.journal.committed, context.journal.previous
    if pointer is not None and is_active(offer, pointer):
        # Another variant of the release may serve, since the committed variant was damaged.
        is_known = committed is not None and committed.digest == pointer.digest
        wanted = committed if committed and is_known else pointer
        if not find_fault(context, wanted):
            because = prove_again(context, wanted)
            sequence = max(offer.sequence, context.journal.acted_sequence)
            return Ended(outcome="already", because=because, changes={"acted_sequence": sequence})
        pointer = serve_last_good(context, pointer)
    check_release(
        offer,
        model.counters.highest(model.name),
        committed=committed.bundle if committed else None,
        previous=previous.bundle if previous else None,
    )
    # 2
    if held_up := context.run_hooks("offered", "before"):
        return held_up
    # 3
    manifest_download = context.scratch.manifest_download or _open_manifest_download(context)
    if held_up := context.request_missing(manifest_download):
        return held_up
    signature, content = (
        manifest_download.content(offer.signature),
        manifest_download.content(offer.manifest),
    )
    # 4, 5, 6: the hooks may think for long, so others may have taken the room meanwhile.
    scratch = context.scratch
    if not scratch.is_judged:
        if context.now() < scratch.retry_at:
            return Wait(seconds=scratch.retry_at - context.now())
        judged = _judge_bundle(context, signature, content, pointer)
        if isinstance(judged, Wait):
            return _judge_later(context, judged)
        scratch.is_judged = True
    if held_up := context.run_hooks("offered", "after"):
        return held_up
    judged = _judge_bundle(context, signature, content, pointer)
    if isinstance(judged, Wait):
        return _judge_later(context, judged)
    deps.slots.write_file(context.digest, SIGNATURE_FILE, signature)
    deps.slots.write_file(context.digest, MANIFEST_FILE, content)
    return judged


def _judge_later(context: UpdateContext, wait: Wait) -> Wait:
    scratch = context.scratch
    scratch.is_judged = False
    scratch.retry_at = max(scratch.retry_at, context.now() + MEMORY_WAIT_S)
    return Wait(seconds=MEMORY_WAIT_S, because=wait.because)


def _wait_for_base(context: UpdateContext, manifest: Manifest) -> Wait | None:
    """Return a wait while the base of an adapter is on its way; None if the base serves, or for
    another model.

    Raises:
        DeviceError: Another release of the base serves, or none, and none is on its way.
    """
    try:
        find_base(context.deps.state_dir, manifest)
    except DeviceError:
        adapter = manifest.facts.adapter
        if adapter is None or not context.model.others.is_coming(adapter.base_digest):
            raise
        return Wait(seconds=MEMORY_WAIT_S, because=f"waits until its base {adapter.words} serves")
    return None


def _judge_bundle(
    context: UpdateContext, signature: bytes, content: bytes, pointer: ActivePointer | None
) -> Step:
    """Return steps 4 and 5 of `judge_offer`; wait when other updates must end first, for their
    room or their firmware, or when the firmware hook is busy.
    """
    deps, model, offer = context.deps, context.model, context.offer
    signed, manifest = deps.trust.check_manifest(signature, content)
    check_identity(offer, signed, manifest)
    check_readable(manifest, deps.config.decryption_key)
    facts = context.read_facts()
    config = deps.config
    if wait := _wait_for_base(context, manifest):
        return wait
    matches = match_here(manifest, facts, config.providers, deps.trust, deps.state_dir)
    rejected = matches.rejected | dict(_find_unsupported(context, matches.candidates))
    names = tuple(one.name for one in matches.candidates if one.name not in rejected)
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in rejected.items())
        raise DeviceError(f"no variant fits this device: {reasons}")
    sizes = {name: manifest.memory_bytes(name) for name in names}
    serving, others = serving_bytes(deps.slots, pointer), model.others.memory_bytes()
    limit_bytes = config.limits.memory_bytes
    too_large = find_too_large(sizes, limit_bytes - serving - sum(others.values()))
    if limit_bytes:
        rejected |= too_large
        small_enough = tuple(name for name in names if name not in too_large)
        # If no variant fits, the smallest one says how much is missing.
        names = small_enough or (min(names, key=sizes.__getitem__),)
    memory_bytes = max(sizes[name] for name in names)
    spare_bytes = check_memory(
        memory_bytes, serving_bytes=serving, others=others, limit_bytes=limit_bytes
    )
    if spare_bytes < (coming_bytes := model.others.coming_bytes()):
        because = f"waits until other updates end: they need {coming_bytes} bytes of memory"
        return Wait(seconds=MEMORY_WAIT_S, because=because)
    is_compared = offer.shadow is not None and pointer and pointer.digest != context.digest
    is_compared = is_compared and manifest.facts.adapter is None
    if is_compared and (because := why_no_room(context, memory_bytes)):
        raise DeviceError(f"shadow first: {because}")
    context.clear_slots(also_kept=frozenset({context.digest}))
    plan = plan_firmware(context, manifest)
    if isinstance(plan, Wait):
        return plan
    download = Download(deps.slots, context.digest, wanted_files(manifest, names, plan))
    check_room(
        max(0, download.size_bytes - download.allocated_bytes()),
        free_bytes=deps.slots.free_bytes(),
        reserve_bytes=config.limits.disk_reserve_bytes,
        promised_bytes=model.others.promised_bytes(),
    )
    fitting = f"{', '.join(names)} ({len(names)} of {len(manifest.variants)})"
    return Ended(
        outcome="success",
        because=f"fits this device: {fitting}",
        changes={
            "candidates": names,
            "rejected": rejected,
            "size_bytes": download.size_bytes,
            "memory_bytes": memory_bytes,
            "firmware": plan,
            "acted_sequence": max(offer.sequence, context.journal.acted_sequence),
        },
    )


def _find_unsupported(context: UpdateContext, candidates: tuple[Variant, ...]) -> Mapping[str, str]:
    """Return the candidates whose precompiled context is not supported here, with reasons.

    Raises:
        NotYetError: The provider has not answered.
    """
    scratch = context.scratch
    if scratch.unsupported is None and any(one.compatibility_string for one in candidates):
        scratch.unsupported = context.run_in_background(
            "compatibility", lambda halt: context.deps.tools.unsupported(candidates, halt)
        )
    return scratch.unsupported or {}


def fetch_files(context: UpdateContext) -> Step:
    """Fetch missing chunks, and verify every complete file.

    Raises:
        OSError: The disk does not work; a later call continues with the present chunks.
    """
    try:
        return _fetch(context)
    except OSError:
        _close_download(context)
        raise


def _fetch(context: UpdateContext) -> Step:
    scratch, deps = context.scratch, context.deps
    if scratch.trouble:
        raise scratch.trouble
    folder = deps.slots.folder(context.digest)
    download = _open_download(context)
    if held_up := context.request_missing(download):
        return _read_again(context, download, held_up)
    try:
        context.run_in_background(
            "finish", lambda halt: _finish(download, folder, deps.trust, halt)
        )
    except BundleError as error:
        raise_disk_fault(error)
        if scratch.was_rechecked:
            raise
        # A disk may have lost what it was told to keep: look at every chunk once.
        log.warning("%s differs from the fetched content; checking every chunk", folder)
        deps.slots.forget_held(context.digest)
        scratch.download, scratch.is_open, scratch.was_rechecked = None, False, True
        scratch.is_prepared = False
        return Wait(seconds=0.0)
    because = f"{download.size_bytes} bytes are there and are what was signed"
    because += describe_taken(scratch.taken)
    if scratch.came_bytes and scratch.need_scheduler:
        flow_s = scratch.need_scheduler.flow_s
        because += f"; {scratch.came_bytes} came in {flow_s:.3f} s"
    return Ended(outcome="success", because=because)


def _read_again(context: UpdateContext, download: Download, wait: Wait) -> Wait:
    """Read chunks again after a while, if the disk failed to read them: they may be there."""
    scratch, now = context.scratch, context.now()
    if not download.has_unread:
        return wait
    if not scratch.reopen_at:
        scratch.reopen_at = now + READ_AGAIN_S
    elif now >= scratch.reopen_at:
        _close_download(context)
        scratch.reopen_at = 0.0
        return Wait(seconds=0.0)
    seconds = scratch.reopen_at - now
    return Wait(seconds=seconds if wait.seconds is None else min(seconds, wait.seconds))


def wanted_files(
    manifest: Manifest, candidates: tuple[str, ...], plan: FirmwarePlan | None = None
) -> tuple[FileEntry, ...]:
    """Return the files that a device fetches: its candidates, the shared files that each device
    needs, and the firmware to install.
    """
    shared = (
        entry
        for entry in manifest.facts.files
        if is_needed(entry.path) or (plan and entry.path == plan.file)
    )
    own = (entry for name in candidates for entry in manifest.variant(name).facts.files)
    return tuple({entry.path: entry for entry in (*shared, *own)}.values())


def _open_manifest_download(context: UpdateContext) -> ManifestDownload:
    offer = context.offer
    manifest_download = ManifestDownload((offer.manifest, offer.signature))
    for ref in (offer.manifest, offer.signature):
        manifest_download.give(ref, context.deps.slots.read_file(context.digest, ref.path))
    context.scratch.manifest_download = manifest_download
    if not manifest_download.is_complete:
        context.start_requests(manifest_download)
    return manifest_download


def _open_download(context: UpdateContext) -> Download:
    """Create the files at their full size, and find the present chunks, in the background.

    Raises:
        OSError: The disk is full.
    """
    deps, digest, scratch = context.deps, context.digest, context.scratch
    if scratch.download is not None and scratch.is_open:
        if not scratch.download.can_patch:
            return scratch.download
        scratch.is_open = False  # The download belongs to the work beside the loop.
    manifest = context.read_manifest()
    if scratch.download is None:
        files = wanted_files(manifest, context.journal.candidates, context.journal.firmware)
        links = find_links(manifest)
        scratch.download = Download(deps.slots, digest, files, {*links, *links.values()})
    download, is_checked = scratch.download, scratch.was_rechecked
    known = (*(entry.path for entry in manifest.files), MANIFEST_FILE, SIGNATURE_FILE)

    def prepare(halt: Halt) -> None:
        deps.slots.remove_strangers(digest, known)
        download.reserve()
        download.resume(check=is_checked, halt=halt)
        if not download.is_complete:
            stored = deps.slots.stored_chunks(apart_from=digest)
            copied = download.take_stored(stored, halt=halt)
            log.info("slot=%s reused_bytes=%d", digest, copied)
            deltas = useful_deltas(
                manifest,
                context.journal.candidates,
                deps.slots,
                lacking_bytes=download.lacking_bytes,
                room_bytes=deps.slots.free_bytes() - deps.config.limits.disk_reserve_bytes,
            )
            download.begin_with(deltas)
            download.note()

    if not scratch.is_prepared:
        context.run_in_background("open", prepare)
        scratch.is_prepared = True
    _patch(context, download)
    _take_from_sources(context, manifest, download)
    if download.can_patch:
        _patch(context, download)
        _take_from_sources(context, manifest, download)
    scratch.is_open = True
    context.start_requests(download)
    return download


def _patch(context: UpdateContext, download: Download) -> None:
    """Patch files with the downloaded deltas."""
    slots, digest = context.deps.slots, context.digest
    if not download.can_patch:
        return

    def make(halt: Halt) -> None:
        made = patch(download, slots.stored_chunks(apart_from=digest), halt)
        download.note()
        log.info("slot=%s patched_bytes=%d", digest, made)

    context.run_in_background("patch", make)
    download.end_deltas()


def _take_from_sources(context: UpdateContext, manifest: Manifest, download: Download) -> None:
    """Fetch chunks from the configured sources; the broker sends the rest."""
    deps, scratch, offer = context.deps, context.scratch, context.offer
    if not deps.config.transfer.sources or deps.fetch_worker is None:
        return
    scratch.taken = context.run_in_background(
        "sources",
        lambda halt: take_from_sources(deps.config, offer, manifest, download, halt),
        deps.fetch_worker,
    )
    if not download.is_complete:
        context.note("source", describe_fallback(scratch.taken, download.lacking_bytes))


def _finish(download: Download, folder: Path, trust: TrustPolicy, halt: Halt) -> None:
    download.finish()
    trust.check_folder(folder, complete=False, checkpoint=halt.check)


def _close_download(context: UpdateContext) -> None:
    """Forget the download: the next call opens the download again from the disk."""
    scratch = context.scratch
    if scratch.download:
        scratch.download.close()
    scratch.download, scratch.trouble = None, None
    scratch.is_open = scratch.is_prepared = False
