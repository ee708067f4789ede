"""Making chunks from local chunks and a delta, instead of fetching them.

Deltas are optional: chunks that a delta does not give, or gives wrongly, are fetched.
"""

import hashlib
import logging
from collections.abc import Mapping

from edgepack.agent.state.slots import Slots, StoredChunk
from edgepack.agent.transfer.download import Download
from edgepack.bundle.deltas import DeltaRecord, delta_path, read_records, unpack_new
from edgepack.bundle.manifest import COMPONENT, FileEntry, Manifest
from edgepack.errors import BundleError
from edgepack.halt import Halt

log = logging.getLogger(__name__)

_WORTH = 1.25
"""A delta is fetched where the chunks that are missing are so many times as long, at least."""


def useful_deltas(
    manifest: Manifest,
    candidates: tuple[str, ...],
    slots: Slots,
    *,
    lacking_bytes: int,
    room_bytes: int,
) -> tuple[FileEntry, ...]:
    """Return the deltas of a bundle that spare this device something.

    Args:
        manifest: The bundle's, verified.
        candidates: The variants that the device fetches.
        slots: Slots of the device.
        lacking_bytes: Bytes to fetch without deltas.
        room_bytes: Free disk for deltas, next to the bundle's files.
    """
    listed = {entry.path: entry for entry in manifest.facts.files}
    found = []
    for variant in candidates:
        paths = (
            delta_path(base, variant)
            for base in sorted(slots.digests())
            if (slots.folder(base) / COMPONENT / variant).is_dir()
        )
        if deltas := [listed[path] for path in paths if path in listed]:
            found.append(min(deltas, key=lambda entry: entry.size_bytes))
    size_bytes = sum(entry.size_bytes for entry in found)
    is_worth = _WORTH * size_bytes <= lacking_bytes and size_bytes <= room_bytes
    return tuple(found) if is_worth else ()


def patch(download: Download, stored: Mapping[bytes, StoredChunk], halt: Halt) -> int:
    """Make the chunks that the deltas of a download give.

    Args:
        download: The bundle, of which nobody else takes anything meanwhile.
        stored: The chunks that the device has elsewhere.
        halt: Ends the work early.

    Returns:
        Bytes that need not be sent.

    Raises:
        OSError: The disk is full.
        HaltedError: The work was halted.
    """
    made = 0
    for path in download.delta_files():
        try:
            for record in read_records(path):
                halt.check()
                made += _make(download, record, stored)
        except BundleError as error:
            log.warning("the delta %s is passed over: %s", path.name, error.problem)
    return made


def _make(download: Download, record: DeltaRecord, stored: Mapping[bytes, StoredChunk]) -> int:
    if record.old not in stored or not download.wants(record.new):
        return 0
    old = stored[record.old].read()
    if hashlib.sha256(old).digest() != record.old:
        return 0
    return download.take(record.new, unpack_new(record, old))
