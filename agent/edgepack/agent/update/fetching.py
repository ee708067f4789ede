"""Judging an offer and fetching its files: the actions of OFFERED and DOWNLOADING."""

import logging

from edgepack.agent.pointer import read_pointer
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.update.download import Download
from edgepack.agent.update.head_download import HeadDownload
from edgepack.agent.update.offer import (
    check_identity,
    check_release,
    check_room,
    check_time,
    is_active,
)
from edgepack.agent.update.work import Ended, Step, Wait, Work
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


def judge_offer(work: Work) -> Step:
    """Judges an offer; nothing is written before all is found right.

    1. Time, release, and whether there is anything to do.
    2. The device's hooks may refuse before anything is fetched.
    3. Manifest and signature come, from a slot that has them or from outside.
    4. A trusted key signed them, and they are what was offered.
    5. A variant fits this device, and there is room.
    6. The hooks have the last word.
    """
    around, offer = work.around, work.offer
    # 1
    check_time(offer, around.clock.wall())
    pointer = read_pointer(around.state_dir)
    if is_active(offer, pointer):
        return Ended(outcome="already", because="this bundle serves already")
    check_release(offer, work.journal)
    # 2
    if held_up := work.run_hooks("offered", "before"):
        return held_up
    # 3
    head = work.scratch.head or _open_head(work)
    if held_up := work.ask_for(head):
        return held_up
    signature, content = head.content(offer.signature), head.content(offer.manifest)
    # 4
    signed = verify_envelope(signature, around.keys)
    manifest = verify_manifest(content, signed)
    check_identity(offer, signed, manifest)
    # 5
    facts = work.read_facts()
    config = around.config
    matches = match_variants(manifest, facts, config.providers, config.trust)
    names = tuple(variant.name for variant in matches.candidates)
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in matches.rejected.items())
        raise DeviceError(f"none of {len(manifest.variants)} variants fits this device: {reasons}")
    around.slots.keep_only(work.kept(pointer) | {work.digest})
    download = Download(around.slots, work.digest, wanted_files(manifest, names))
    check_room(
        max(0, download.size_bytes - download.allocated_bytes()),
        free_bytes=around.slots.free_bytes(),
        reserve_bytes=config.limits.disk_reserve_bytes,
    )
    # 6
    if held_up := work.run_hooks("offered", "after"):
        return held_up
    around.slots.write_file(work.digest, SIGNATURE_FILE, signature)
    around.slots.write_file(work.digest, MANIFEST_FILE, content)
    because = f"{len(names)} of {len(manifest.variants)} variants fit: {', '.join(names)}"
    changes = {"candidates": names, "rejected": matches.rejected}
    return Ended(outcome="success", because=because, changes=changes)


def fetch_files(work: Work) -> Step:
    """Fetches what is missing, and verifies every file once all is there."""
    scratch = work.scratch
    if scratch.trouble:
        return _give_up(work, scratch.trouble)
    try:
        download = scratch.download or _open_download(work)
        if held_up := work.ask_for(download):
            return held_up
        download.finish()
    except OSError as error:
        return _give_up(work, error)
    folder = work.around.slots.folder(work.digest)
    try:
        verify_folder(folder, work.around.keys, complete=False)
    except BundleError:
        if scratch.was_rechecked:
            raise
        # A disk may have lost what it was told to keep: look at every chunk once.
        log.warning("%s is not what was fetched; looking at every chunk", folder)
        work.around.slots.forget_held(work.digest)
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


def _open_head(work: Work) -> HeadDownload:
    offer = work.offer
    head = HeadDownload((offer.manifest, offer.signature))
    for ref in (offer.manifest, offer.signature):
        head.give(ref, work.around.slots.read_file(work.digest, ref.path))
    work.scratch.head = head
    if not head.is_complete:
        work.start_asking(head)
    return head


def _open_download(work: Work) -> Download:
    around, digest = work.around, work.digest
    manifest = work.read_manifest()
    every = [entry.path for entry in manifest.files]
    around.slots.remove_strangers(digest, (*every, MANIFEST_FILE, SIGNATURE_FILE))
    download = Download(around.slots, digest, wanted_files(manifest, work.journal.candidates))
    download.reserve()
    work.scratch.download = download
    download.resume(check=work.scratch.was_rechecked)
    if not download.is_complete:
        copied = download.take_stored(around.slots.stored_chunks(apart_from=digest))
        log.info("slot=%s reused_bytes=%d", work.digest, copied)
        download.note()
    work.start_asking(download)
    return download


def _give_up(work: Work, error: OSError) -> Ended:
    """The disk is full: what was fetched makes room for the journal."""
    if work.scratch.download:
        work.scratch.download.close()
        work.scratch.download = None
    kept = work.kept(read_pointer(work.around.state_dir))
    if work.digest not in kept:
        work.around.slots.remove(work.digest)
    free_bytes = work.around.slots.free_bytes()
    because = f"the disk failed while downloading: {error.strerror} ({free_bytes} bytes free)"
    return Ended(outcome="failure", because=because)
