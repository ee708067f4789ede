"""What models take in memory, as far as it is known before they run: their files' size.

ONNX Runtime holds weights about as they lie on the disk; what it takes beyond that depends on the
provider, and is for the reserve that `limits.memory_bytes` leaves.
"""

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import Slots
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from edgepack.errors import BundleError


def variant_bytes(variant: Variant) -> int:
    """Size of all files of a variant."""
    return sum(entry.size_bytes for entry in variant.facts.files)


def serving_bytes(slots: Slots, pointer: ActivePointer | None) -> int:
    """What the release takes that a pointer leads to; 0 when there is none, or none readable."""
    content = slots.read_file(pointer.digest, MANIFEST_FILE) if pointer else None
    if pointer is None or content is None:
        return 0
    try:
        return variant_bytes(decode_manifest(content).variant(pointer.choice.chosen))
    except (BundleError, KeyError):
        return 0
