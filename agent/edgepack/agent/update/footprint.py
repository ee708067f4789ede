"""Memory of models, estimated before a run from the size of their files.

ONNX Runtime holds weights in about their size on the disk; further memory depends on the provider,
and is for the reserve that `limits.memory_bytes` leaves.
"""

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import Slots
from edgepack.bundle.manifest import MANIFEST_FILE, Variant, decode_manifest
from edgepack.errors import BundleError


def variant_bytes(variant: Variant) -> int:
    """Size of all files of a variant."""
    return sum(entry.size_bytes for entry in variant.facts.files)


def serving_bytes(slots: Slots, pointer: ActivePointer | None) -> int:
    """Return the memory of a pointer's release; 0 without a release whose manifest can be read."""
    if pointer is None:
        return 0
    try:
        content = slots.read_file(pointer.digest, MANIFEST_FILE) or b""
        return variant_bytes(decode_manifest(content).variant(pointer.choice.chosen))
    except (BundleError, KeyError, OSError):
        return 0
