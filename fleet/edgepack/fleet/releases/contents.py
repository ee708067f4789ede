"""What a release that the fleet holds has inside: its manifest, and the report of its build."""

from functools import lru_cache
from pathlib import Path

from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from edgepack.errors import FleetError

REPORT_FILE = "report.html"
MAX_REPORT_BYTES = 32 * 1024 * 1024


@lru_cache(maxsize=64)
def read_manifest(folder: Path) -> Manifest:
    """The manifest of a release; what lies in its folder was verified when it came, and stays so.

    Raises:
        BundleError: It cannot be read.
    """
    return decode_manifest(read_bounded(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES))


def has_report(manifest: Manifest) -> bool:
    """Whether the bundle has a report that can be shown."""
    sizes = {entry.path: entry.size_bytes for entry in manifest.facts.files}
    return sizes.get(REPORT_FILE, MAX_REPORT_BYTES + 1) <= MAX_REPORT_BYTES


def read_report(folder: Path) -> bytes:
    """The report of a build, as HTML that whoever made the bundle wrote: not to be trusted.

    Raises:
        FleetError: There is none.
        BundleError: It cannot be read.
    """
    if not has_report(read_manifest(folder)):
        raise FleetError("the bundle carries no report of its build")
    return read_bounded(folder / REPORT_FILE, MAX_REPORT_BYTES)
