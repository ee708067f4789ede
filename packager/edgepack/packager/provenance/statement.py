"""The provenance of a bundle: an in-toto statement with a SLSA provenance v1 predicate.

The statement contains the result (`subject`), the inputs (`resolvedDependencies`), the request
(`externalParameters`) and the tools (`builder`). The statement is a file under the bundle's
signature, without a separate envelope: a single signature covers all.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from edgepack.bundle.manifest import FileEntry
from edgepack.bundle.provenance import BUILD_TYPE, SLSA_PREDICATE_TYPE, STATEMENT_TYPE
from edgepack.packager.provenance.record import BuildRecord


def compose_statement(record: BuildRecord, files: Iterable[FileEntry]) -> dict[str, Any]:
    """Return the statement of a build.

    Args:
        record: Record of the build.
        files: Every file of the bundle but the statement, the manifest and the signature.
    """
    facts = record.facts
    details: dict[str, Any] = {
        "builder": {
            "id": record.builder_id,
            "version": dict(sorted(facts.tools.items())),
        },
    }
    if facts.created_at:
        details["metadata"] = {"finishedOn": facts.created_at}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": file.path, "digest": {"sha256": file.sha256}}
            for file in sorted(files, key=lambda file: file.path)
        ],
        "predicateType": SLSA_PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": dict(record.external),
                "internalParameters": _internal(record),
                "resolvedDependencies": list(_dependencies(record)),
            },
            "runDetails": details,
        },
    }


def _internal(record: BuildRecord) -> dict[str, Any]:
    return {
        "host": dict(record.host),
        "samples": {
            samples.used_for: {"count": samples.count, "random": samples.is_random}
            for samples in record.samples
        },
        "variants": {
            variant.name: {
                "precision": variant.facts.precision,
                "onnxruntime": variant.facts.toolchain.onnxruntime,
                "tools": dict(variant.facts.toolchain.tools),
            }
            for variant in record.variants
        },
    }


def _dependencies(record: BuildRecord) -> Iterator[dict[str, Any]]:
    """Yield the inputs of the build with their digests."""
    yield {
        "name": record.model.file,
        "digest": {"sha256": record.model.sha256},
        "annotations": {"role": "source model", "covers": "the file, then its external data"},
    }
    for samples in record.samples:
        yield {
            "name": f"{samples.used_for} samples",
            "digest": {"sha256": samples.sha256},
            "annotations": {"role": f"{samples.used_for} samples", "count": samples.count},
        }
    profiles = {each.facts.profile: each.facts.profile_sha256 for each in record.variants}
    for name, sha256 in sorted(profiles.items()):
        yield {
            "name": name,
            "digest": {"sha256": sha256},
            "annotations": {"role": "profile", "covers": "the profile with all that it inherits"},
        }
    for material in record.materials:
        yield {"name": material.name, "digest": {"sha256": material.sha256}}
