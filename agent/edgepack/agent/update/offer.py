"""Judging an offer before the first byte of a model is fetched. Pure; each refusal has numbers.

A refusal is a `TransferError` when the message itself makes no sense, and a `DeviceError` when
the bundle is not for this device, now.
"""

import math
import re
from collections.abc import Mapping

from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.pointer import ActivePointer
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE, Manifest
from edgepack.bundle.signature import SignedList
from edgepack.errors import DeviceError, TransferError
from edgepack.wire.orders import (
    MAX_SEQUENCE,
    MAX_SOAK_S,
    MAX_STEP,
    BundleRef,
    FileRef,
    ModelOrder,
    RunModel,
)

MAX_DEADLINE_S = 366 * 24 * 3600.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[ -~]{0,100}")


def check_order(name: str, order: ModelOrder, *, acted_sequence: int) -> None:
    """Check every field of an order; a digest becomes a folder's name.

    Args:
        name: The order's model.
        order: Order to check.
        acted_sequence: The highest sequence that was acted on.

    Raises:
        TransferError: An order is invalid.
    """
    highest = min(MAX_SEQUENCE, acted_sequence + MAX_STEP)
    _check(0 < order.sequence <= highest, "sequence", order.sequence)
    _check_content(name, order)


def check_local(name: str, order: ModelOrder) -> None:
    """Check an order from this device, which has no sequence.

    Raises:
        TransferError: A field has an invalid value.
    """
    _check(order.sequence == 0, "sequence", order.sequence)
    _check_content(name, order)


def _check_content(name: str, order: ModelOrder) -> None:
    _check(MODEL_NAME.fullmatch(name), "name", name)
    _check(_WORD.fullmatch(order.rollout), "rollout", order.rollout)
    if not isinstance(order, RunModel):
        return
    bundle = order.bundle
    _check(bundle.name == name, "bundle.name", bundle.name)
    _check(_WORD.fullmatch(bundle.version), "bundle.version", bundle.version)
    _check(0 <= bundle.release <= MAX_SEQUENCE, "bundle.release", bundle.release)
    _check(_DIGEST.fullmatch(bundle.digest), "bundle.digest", bundle.digest)
    _check_file(order.manifest, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    _check_file(order.signature, SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    _check(0 <= order.soak_s <= MAX_SOAK_S, "soak_s", order.soak_s)
    _check(0 <= order.min_inferences <= MAX_SEQUENCE, "min_inferences", order.min_inferences)
    deadline_s = order.deadline_s
    _check(deadline_s is None or 0 <= deadline_s <= MAX_DEADLINE_S, "deadline_s", deadline_s)
    expires_at = order.expires_at
    _check(expires_at is None or math.isfinite(expires_at), "expires_at", expires_at)


def _check_file(ref: FileRef, path: str, max_bytes: int) -> None:
    _check(ref.path == path, f"{path}: path", ref.path)
    _check(0 < ref.size_bytes <= max_bytes, f"{path}: size_bytes", ref.size_bytes)
    _check(_DIGEST.fullmatch(ref.sha256), f"{path}: sha256", ref.sha256)


def _check(holds: object, field: str, value: object) -> None:
    if not holds:
        shown = ascii(value)[:80]
        raise TransferError(f"the offer makes no sense: {field} is {shown}")


def check_time(offer: RunModel, now: float) -> None:
    """Reject an offer that must not be started any more.

    Raises:
        DeviceError: The offer has expired.
    """
    if offer.expires_at is not None and now > offer.expires_at:
        raise DeviceError(f"the offer expired {now - offer.expires_at:.0f} s ago")


def check_release(
    offer: RunModel, highest: int, *, committed: BundleRef | None, previous: BundleRef | None
) -> None:
    """Reject a release older than the highest committed release, except the previous release.

    Args:
        offer: Offered release.
        highest: The highest release of the model that was committed here.
        committed: The release that is committed now, which may come again: its files may rot.
        previous: The release that was committed before `committed`.

    Raises:
        DeviceError: The release is older.
    """
    bundle = offer.bundle
    if bundle.release >= highest or (committed and committed.digest == bundle.digest):
        return
    if not offer.rollback:
        raise DeviceError(
            f"older release: {bundle.name} release {bundle.release} is offered, "
            f"release {highest} was committed here"
        )
    if previous is None or previous.digest != bundle.digest:
        kept = f"release {previous.release}" if previous else "none"
        raise DeviceError(
            f"older release: the order requests a rollback to {bundle.name} {bundle.release}, "
            f"but the previous committed release is {kept}"
        )


def is_active(offer: RunModel, pointer: ActivePointer | None) -> bool:
    """Return True if the offered bundle serves already and is committed; False for the same digest
    with another name, version or release, a contradiction that is rejected later.
    """
    return pointer is not None and pointer.committed and pointer.bundle == offer.bundle


def check_identity(offer: RunModel, signed: SignedList, manifest: Manifest) -> None:
    """Reject a signed bundle other than the offered bundle.

    Raises:
        DeviceError: Digest, name, version or release differ.
    """
    facts = manifest.facts
    found = BundleRef(
        name=facts.name, version=facts.version, release=facts.release, digest=signed.digest
    )
    for field in ("digest", "name", "version", "release"):
        is_value, was_offered = getattr(found, field), getattr(offer.bundle, field)
        if is_value != was_offered:
            raise DeviceError(
                f"the signed bundle has {field} {is_value!a}, {was_offered!a} was offered"
            )


def check_room(
    needed_bytes: int, *, free_bytes: int, reserve_bytes: int, promised_bytes: int
) -> None:
    """Reject an update that would take the disk below its reserve.

    Args:
        needed_bytes: Needed space.
        free_bytes: Free space of the disk.
        reserve_bytes: Space that must stay free.
        promised_bytes: Space promised to updates of other models.

    Raises:
        DeviceError: There is no room.
    """
    short = needed_bytes + promised_bytes + reserve_bytes - free_bytes
    if short > 0 and needed_bytes > 0:
        promised = f", {promised_bytes} are promised to other models" if promised_bytes else ""
        raise DeviceError(
            f"no room: the update needs {needed_bytes} bytes, {free_bytes} are free{promised} and "
            f"{reserve_bytes} must stay free; {short} bytes are missing"
        )


def find_too_large(sizes: Mapping[str, int], room_bytes: int) -> dict[str, str]:
    """Return the variants that need more memory than the other models leave, with reasons.

    Args:
        sizes: Memory of each variant, by name.
        room_bytes: Memory left.
    """
    return {
        name: f"it needs {size} bytes of memory, and limits.memory_bytes leaves {room_bytes}"
        for name, size in sizes.items()
        if size > room_bytes
    }


def check_memory(
    needed_bytes: int, *, serving_bytes: int, others: Mapping[str, int], limit_bytes: int
) -> float:
    """Reject a release that would not fit into memory next to all other models.

    Args:
        needed_bytes: Memory of the largest candidate that fits, else of the smallest.
        serving_bytes: Memory of the model's serving release meanwhile.
        others: Memory of each other model, by name.
        limit_bytes: Limit of all models together; 0 means no limit.

    Returns:
        Free space left for releases of other models.

    Raises:
        DeviceError: There is no room.
    """
    total = needed_bytes + serving_bytes + sum(others.values())
    if limit_bytes and total > limit_bytes:
        parts = [f"{size} of {name}" for name, size in sorted(others.items()) if size]
        if serving_bytes:
            parts.insert(0, f"{serving_bytes} of the release that it replaces")
        beside = f" beside {', '.join(parts)}" if parts else ""
        raise DeviceError(
            f"no memory: the model needs {needed_bytes} bytes{beside}; {limit_bytes} bytes are "
            f"allowed, {total - limit_bytes} are missing"
        )
    return limit_bytes - total if limit_bytes else math.inf
