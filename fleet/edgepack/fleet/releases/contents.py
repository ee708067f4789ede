"""Contents of a stored release: its manifest, and the report of its build."""

import hashlib
from functools import lru_cache
from pathlib import Path

from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.manifest import Manifest
from edgepack.errors import FleetError
from edgepack.fleet.releases.folder import read_own_manifest

REPORT_FILE = "report.html"
MAX_REPORT_BYTES = 32 * 1024 * 1024


@lru_cache(maxsize=64)
def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a release.

    Args:
        folder: Of the release, which its root digest names.

    Raises:
        ReleaseDamagedError: The manifest differs from the published manifest.
        BundleError: The manifest cannot be read now.
    """
    return read_own_manifest(folder, folder.name)


def has_report(manifest: Manifest) -> bool:
    """Return True if the bundle has a report that can be shown."""
    sizes = {entry.path: entry.size_bytes for entry in manifest.facts.files}
    return sizes.get(REPORT_FILE, MAX_REPORT_BYTES + 1) <= MAX_REPORT_BYTES


def read_report(folder: Path) -> bytes:
    """Return the report of a build: untrusted HTML of the publisher.

    Raises:
        FleetError: The report is missing or differs from the published report.
        BundleError: The report cannot be read.
    """
    manifest = read_manifest(folder)
    if not has_report(manifest):
        raise FleetError("the bundle carries no report of its build")
    content = read_bounded(folder / REPORT_FILE, MAX_REPORT_BYTES)
    wanted = {entry.path: entry.sha256 for entry in manifest.facts.files}[REPORT_FILE]
    if hashlib.sha256(content).hexdigest() != wanted:
        raise FleetError(
            f"{REPORT_FILE} is not what was published", found_in=str(folder / REPORT_FILE)
        )
    return content
