"""Budgets of a model's builds, for comparison with devices' measurements."""

from msgspec.structs import replace

from edgepack.bundle.feedback import Evidence, Feedback
from edgepack.bundle.manifest import Manifest
from edgepack.errors import BundleError, FleetError
from edgepack.fleet.releases.contents import read_manifest
from edgepack.fleet.releases.folder import ReleaseFolder


def with_budgets(feedback: Feedback, folder: ReleaseFolder) -> Feedback:
    """Return the feedback, each entry with the metric and the budget of its build, if the fleet has
    the build.

    Args:
        feedback: Of releases that the fleet knows.
        folder: Where releases lie.
    """
    digests = {entry.digest for entry in feedback.evidence}
    known = {digest: found for digest in digests if (found := _manifest(folder, digest))}
    evidence = tuple(_with_budget(entry, known.get(entry.digest)) for entry in feedback.evidence)
    return replace(feedback, evidence=evidence)


def _manifest(folder: ReleaseFolder, digest: str) -> Manifest | None:
    """Return the manifest; None if the release's files are deleted, or missing yet."""
    try:
        return read_manifest(folder.find(digest))
    except (FleetError, BundleError, OSError):
        return None


def _with_budget(entry: Evidence, manifest: Manifest | None) -> Evidence:
    variants = manifest.variants if manifest else ()
    found = next((each.facts.accuracy for each in variants if each.name == entry.variant), None)
    return replace(entry, metric=found.metric, budget=found.budget) if found else entry
