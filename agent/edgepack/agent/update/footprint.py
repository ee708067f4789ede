"""Memory of models, estimated before a run.

Memory beyond the estimate is for the reserve that `limits.memory_bytes` leaves.
"""

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import Slots
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.errors import BundleError


def serving_bytes(slots: Slots, pointer: ActivePointer | None) -> int:
    """Return the memory of a pointer's release; 0 without a release whose manifest can be read."""
    if pointer is None:
        return 0
    try:
        content = slots.read_file(pointer.digest, MANIFEST_FILE) or b""
        return decode_manifest(content).memory_bytes(pointer.choice.chosen)
    except (BundleError, KeyError, OSError):
        return 0
