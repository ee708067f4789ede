"""What the builds of a model's releases asked of its variants, beside what devices measured."""

from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.feedback import Evidence, Feedback
from edgepack.bundle.manifest import Manifest
from edgepack.errors import BundleError
from edgepack.fleet.releases.contents import read_manifest


def with_budgets(feedback: Feedback, root: Path) -> Feedback:
    """The same, each entry with the metric and the budget of its build, where the fleet has it.

    Args:
        feedback: Of releases that the fleet knows.
        root: Folder of the releases, by digest.
    """
    digests = {entry.digest for entry in feedback.evidence}
    known = {digest: found for digest in digests if (found := _manifest(root / digest))}
    evidence = tuple(_with_budget(entry, known.get(entry.digest)) for entry in feedback.evidence)
    return replace(feedback, evidence=evidence)


def _manifest(folder: Path) -> Manifest | None:
    """None where the release's files were deleted."""
    try:
        return read_manifest(folder)
    except (BundleError, OSError):
        return None


def _with_budget(entry: Evidence, manifest: Manifest | None) -> Evidence:
    variants = manifest.variants if manifest else ()
    found = next((each.facts.accuracy for each in variants if each.name == entry.variant), None)
    return replace(entry, metric=found.metric, budget=found.budget) if found else entry
