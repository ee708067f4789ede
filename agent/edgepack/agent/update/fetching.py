"""Judging an offer and fetching its files: the actions of OFFERED and DOWNLOADING."""

import logging

from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.state.pointer import read_pointer
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.manifest_download import ManifestDownload
from edgepack.agent.update.context import Ended, Step, UpdateContext, Wait
from edgepack.agent.update.offer import (
    check_identity,
    check_release,
    check_room,
    check_time,
    is_active,
)
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    HOOKS_FOLDER,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    FileEntry,
    Manifest,
)
from edgepack.bundle.signature import verify_envelope
from edgepack.bundle.verify import verify_folder, verify_manifest
from edgepack.errors import BundleError, DeviceError

log = logging.getLogger(__name__)


def judge_offer(context: UpdateContext) -> Step:
    """Judges an offer; nothing is written before all is found right.

    1. Time, release, and whether there is anything to do.
    2. The device's hooks may refuse before anything is fetched.
    3. Manifest and signature come, from a slot that has them or from outside.
    4. A trusted key signed them, and they are what was offered.
    5. A variant fits this device, and there is room.
    6. The hooks have the last word.
    """
    deps, offer = context.deps, context.offer
    # 1
    check_time(offer, deps.clock.wall())
    pointer = read_pointer(deps.state_dir)
    if is_active(offer, pointer):
        return Ended(outcome="already", because="this bundle serves already")
    check_release(offer, context.journal)
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
    # 4
    signed = verify_envelope(signature, deps.keys)
    manifest = verify_manifest(content, signed)
    check_identity(offer, signed, manifest)
    # 5
    facts = context.read_facts()
    config = deps.config
    matches = match_variants(manifest, facts, config.providers, config.trust)
    names = tuple(variant.name for variant in matches.candidates)
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in matches.rejected.items())
        raise DeviceError(f"no variant fits this device: {reasons}")
    deps.slots.keep_only(context.kept(pointer) | {context.digest})
    download = Download(deps.slots, context.digest, wanted_files(manifest, names))
    check_room(
        max(0, download.size_bytes - download.allocated_bytes()),
        free_bytes=deps.slots.free_bytes(),
        reserve_bytes=config.limits.disk_reserve_bytes,
    )
    # 6
    if held_up := context.run_hooks("offered", "after"):
        return held_up
    deps.slots.write_file(context.digest, SIGNATURE_FILE, signature)
    deps.slots.write_file(context.digest, MANIFEST_FILE, content)
    fitting = f"{', '.join(names)} ({len(names)} of {len(manifest.variants)})"
    because = f"fits this device: {fitting}"
    changes = {"candidates": names, "rejected": matches.rejected}
    return Ended(outcome="success", because=because, changes=changes)


def fetch_files(context: UpdateContext) -> Step:
    """Fetches what is missing, and verifies every file once all is there."""
    scratch = context.scratch
    if scratch.trouble:
        return _give_up(context, scratch.trouble)
    try:
        download = scratch.download or _open_download(context)
        if held_up := context.request_missing(download):
            return held_up
        download.finish()
    except OSError as error:
        return _give_up(context, error)
    folder = context.deps.slots.folder(context.digest)
    try:
        verify_folder(folder, context.deps.keys, complete=False)
    except BundleError:
        if scratch.was_rechecked:
            raise
        # A disk may have lost what it was told to keep: look at every chunk once.
        log.warning("%s is not what was fetched; looking at every chunk", folder)
        context.deps.slots.forget_held(context.digest)
        scratch.download, scratch.was_rechecked = None, True
        return Wait(seconds=0.0)
    because = f"{download.size_bytes} bytes are there and are what was signed"
    return Ended(outcome="success", because=because)


def wanted_files(manifest: Manifest, candidates: tuple[str, ...]) -> tuple[FileEntry, ...]:
    """The files that a device fetches: its candidates, the golden samples, the hooks."""
    shared = (
        entry
        for entry in manifest.facts.files
        if entry.path == GOLDEN_FILE or entry.path.startswith(f"{HOOKS_FOLDER}/")
    )
    own = (entry for name in candidates for entry in manifest.variant(name).facts.files)
    return (*shared, *own)


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
    deps, digest = context.deps, context.digest
    manifest = context.read_manifest()
    every = [entry.path for entry in manifest.files]
    deps.slots.remove_strangers(digest, (*every, MANIFEST_FILE, SIGNATURE_FILE))
    download = Download(deps.slots, digest, wanted_files(manifest, context.journal.candidates))
    download.reserve()
    context.scratch.download = download
    download.resume(check=context.scratch.was_rechecked)
    if not download.is_complete:
        copied = download.take_stored(deps.slots.stored_chunks(apart_from=digest))
        log.info("slot=%s reused_bytes=%d", context.digest, copied)
        download.note()
    context.start_requests(download)
    return download


def _give_up(context: UpdateContext, error: OSError) -> Ended:
    """The disk is full: what was fetched makes room for the journal."""
    if context.scratch.download:
        context.scratch.download.close()
        context.scratch.download = None
    kept = context.kept(read_pointer(context.deps.state_dir))
    if context.digest not in kept:
        context.deps.slots.remove(context.digest)
    free_bytes = context.deps.slots.free_bytes()
    because = f"the disk failed while downloading: {error.strerror} ({free_bytes} bytes free)"
    return Ended(outcome="failure", because=because)
