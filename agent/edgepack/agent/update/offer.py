"""Judging an offer before the first byte of a model is fetched. Pure; each refusal has numbers.

A refusal is a `TransferError` when the message itself makes no sense, and a `DeviceError` when
the bundle is not for this device, now.
"""

import math
import re

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.journal import Journal
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE, Manifest
from edgepack.bundle.signature import SignedList
from edgepack.errors import DeviceError, TransferError
from edgepack.wire.messages import BundleRef, Desired, FileRef

MAX_SEQUENCE = 2**53
MAX_SOAK_S = 30 * 24 * 3600.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_WORD = re.compile(r"[ -~]{0,100}")


def check_message(desired: Desired) -> None:
    """Checks that every field of an offer can be what it says; a digest becomes a folder's name.

    Raises:
        TransferError: One cannot.
    """
    _check(0 < desired.sequence <= MAX_SEQUENCE, "sequence", desired.sequence)
    _check_content(desired)


def check_local(desired: Desired) -> None:
    """The same for an offer from a file on this device, which has no sequence.

    Raises:
        TransferError: A field cannot be what it says.
    """
    _check(desired.sequence == 0, "sequence", desired.sequence)
    _check_content(desired)


def _check_content(desired: Desired) -> None:
    _check(_WORD.fullmatch(desired.rollout), "rollout", desired.rollout)
    _check(_NAME.fullmatch(desired.bundle.name), "bundle.name", desired.bundle.name)
    _check(_WORD.fullmatch(desired.bundle.version), "bundle.version", desired.bundle.version)
    _check(0 <= desired.bundle.release <= MAX_SEQUENCE, "bundle.release", desired.bundle.release)
    _check(_DIGEST.fullmatch(desired.bundle.digest), "bundle.digest", desired.bundle.digest)
    _check_file(desired.manifest, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    _check_file(desired.signature, SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    _check(0 <= desired.soak_s <= MAX_SOAK_S, "soak_s", desired.soak_s)
    expires_at = desired.expires_at
    _check(expires_at is None or math.isfinite(expires_at), "expires_at", expires_at)


def _check_file(ref: FileRef, path: str, max_bytes: int) -> None:
    _check(ref.path == path, f"{path}: path", ref.path)
    _check(0 < ref.size_bytes <= max_bytes, f"{path}: size_bytes", ref.size_bytes)
    _check(_DIGEST.fullmatch(ref.sha256), f"{path}: sha256", ref.sha256)


def _check(holds: object, field: str, value: object) -> None:
    if not holds:
        shown = ascii(value)[:80]
        raise TransferError(f"the offer makes no sense: {field} is {shown}")


def check_time(desired: Desired, now: float) -> None:
    """Refuses an offer that must not be started any more.

    Raises:
        DeviceError: It has expired.
    """
    if desired.expires_at is not None and now > desired.expires_at:
        raise DeviceError(f"the offer expired {now - desired.expires_at:.0f} s ago")


def check_release(desired: Desired, journal: Journal) -> None:
    """Refuses an older release than was ever committed, save the way back to the one before.

    Raises:
        DeviceError: The release is older.
    """
    bundle = desired.bundle
    highest = journal.highest_releases.get(bundle.name, 0)
    if bundle.release >= highest:
        return
    if not desired.rollback:
        raise DeviceError(
            f"older release: {bundle.name} release {bundle.release} is offered, "
            f"release {highest} was committed here"
        )
    if journal.previous is None or journal.previous.digest != bundle.digest:
        kept = f"release {journal.previous.release}" if journal.previous else "none"
        raise DeviceError(
            f"older release: going back to {bundle.name} release {bundle.release} is asked for, "
            f"but the one committed before is {kept}"
        )


def is_active(desired: Desired, pointer: ActivePointer | None) -> bool:
    """Whether the offered bundle serves already, for good."""
    return pointer is not None and pointer.committed and pointer.digest == desired.bundle.digest


def check_identity(desired: Desired, signed: SignedList, manifest: Manifest) -> None:
    """Refuses a bundle that is signed, but is not the one that was offered.

    Raises:
        DeviceError: Digest, name, version or release differ.
    """
    facts = manifest.facts
    found = BundleRef(
        name=facts.name, version=facts.version, release=facts.release, digest=signed.digest
    )
    for field in ("digest", "name", "version", "release"):
        is_value, was_offered = getattr(found, field), getattr(desired.bundle, field)
        if is_value != was_offered:
            raise DeviceError(
                f"the signed bundle has {field} {is_value!a}, {was_offered!a} was offered"
            )


def check_room(needed_bytes: int, *, free_bytes: int, reserve_bytes: int) -> None:
    """Refuses an update that would take the disk below its reserve.

    Raises:
        DeviceError: There is no room.
    """
    short = needed_bytes + reserve_bytes - free_bytes
    if short > 0 and needed_bytes > 0:
        raise DeviceError(
            f"no room: the update needs {needed_bytes} bytes, {free_bytes} are free and "
            f"{reserve_bytes} must stay free; {short} bytes are missing"
        )
