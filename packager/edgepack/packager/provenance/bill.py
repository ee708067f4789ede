"""The bill of materials of a bundle: a CycloneDX 1.6 document with model cards (an "ML-BOM").

Measured and known facts are copied unchanged. Facts that only a person knows come from `[about]`
and `[datasets]` of `edgepack.toml`, else from the model's own files. Missing facts are left out: no
field is filled with "unknown". `minimum_elements` lists the places of the G7's elements.

The data sets of a bill of materials: data sets named by a person, and the samples of the build.

If a single data set is named for calibration (or evaluation), the build's samples are this data
set: the component then has their digest and number. Where none or several are, the samples stand
for themselves.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from edgepack.bundle.manifest import SIGNATURE_FILE, FileEntry, Variant
from edgepack.bundle.provenance import PROVENANCE_FILE
from edgepack.packager.config.about import DatasetSection
from edgepack.packager.provenance.record import BuildRecord, SampleSet, encode_document
from edgepack.packager.provenance.wording import (
    compose_licenses,
    compose_properties,
    without_empty,
)
from edgepack.text import counted

SPEC_VERSION = "1.6"

BUNDLE_REF = "bundle"
SOURCE_REF = "source-model"

_OWN_CONTROLS = (
    "Every file is listed with its SHA-256 in one signature (OpenSSF Model Signing).",
    "A device verifies signature and files before it loads a model, and refuses older releases.",
    "A device proves the model on sample inputs before it serves, and goes back where it fails.",
)
_ENCRYPTED = (
    "Variants and golden samples are encrypted (AES-256-GCM) to the devices' keys (HPKE), and "
    "decrypted in memory only."
)
_RUNTIME = "onnxruntime"


def compose_bill(record: BuildRecord) -> dict[str, Any]:
    """Return the bill of materials of a build; the same build always gives the same document."""
    datasets = compose_datasets(record)
    refs = [str(dataset["bom-ref"]) for dataset in datasets]
    runtimes = sorted({each.facts.toolchain.onnxruntime for each in record.variants})
    document: dict[str, Any] = without_empty(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": SPEC_VERSION,
            "version": 1,
            "metadata": _metadata(record, refs),
            "components": [
                _source(record, refs),
                *(_variant(record, variant, refs) for variant in record.variants),
                *datasets,
                *map(_library, runtimes),
            ],
            "dependencies": list(_dependencies(record, datasets)),
            "externalReferences": [
                {
                    "type": "digital-signature",
                    "url": SIGNATURE_FILE,
                    "comment": "Signs every file of the bundle, this one too.",
                },
                {
                    "type": "attestation",
                    "url": PROVENANCE_FILE,
                    "comment": "SLSA provenance of the build.",
                },
            ],
        }
    )
    digest = hashlib.sha256(encode_document(document)).hexdigest()
    return document | {"serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, digest).urn}


def _metadata(record: BuildRecord, datasets: list[str]) -> dict[str, Any]:
    facts, about = record.facts, record.about
    authors = about.authors or ((about.producer,) if about.producer else ())
    return {
        "timestamp": facts.created_at,
        "lifecycles": [{"phase": "build"}],
        "authors": [{"name": name} for name in authors],
        "tools": {
            "components": [
                {"type": "application", "name": name, "version": version}
                for name, version in sorted(facts.tools.items())
            ]
        },
        "component": _bundle(record, datasets),
    }


def _bundle(record: BuildRecord, datasets: list[str]) -> dict[str, Any]:
    """Return the system as a whole: the release, with all its variants."""
    facts, about, texts = record.facts, record.about, record.facts.generation
    flow = about.data_flow or (
        f"Computed on the device: {'; '.join(record.model.inputs)} goes in, "
        f"{'; '.join(record.model.outputs)} comes out."
    )
    metrics = [metric for variant in record.variants for metric in _metrics(variant)]
    metrics += [
        {"type": f"security: {name}", "value": _number(value)}
        for name, value in sorted(about.security_metrics.items())
    ]
    return _what_models_share(record) | {
        "bom-ref": BUNDLE_REF,
        "name": facts.name,
        "description": about.description or record.stated.description,
        "authors": [{"name": name} for name in record.stated.authors],
        "purl": _purl(facts.name, facts.version, ""),
        "components": list(map(_file, record.assets)),
        "modelCard": {
            "modelParameters": _parameters(record, datasets),
            "quantitativeAnalysis": {"performanceMetrics": metrics},
            "considerations": {
                "useCases": [about.intended_use] if about.intended_use else [],
                "technicalLimitations": list(about.limitations),
            },
        },
        "properties": compose_properties(
            {
                "release": str(facts.release),
                "created-at": facts.created_at,
                "data-flow": flow,
                "data-usage": about.data_usage,
                "context": f"{texts.context} tokens" if texts else "",
                "cache": f"{texts.cache_bytes_per_token} bytes per token" if texts else "",
                "security-control": (
                    *_OWN_CONTROLS,
                    *((_ENCRYPTED,) if facts.encryption is not None else ()),
                    *about.security_controls,
                ),
                "security-compliance": about.security_compliance,
            }
        ),
    }


def _source(record: BuildRecord, datasets: list[str]) -> dict[str, Any]:
    """Return the model that the build started from."""
    about, stated, model = record.about, record.stated, record.model
    version = stated.version or record.facts.version
    return _what_models_share(record) | {
        "bom-ref": SOURCE_REF,
        "name": model.file,
        "version": version,
        "description": about.description or stated.description,
        "authors": [{"name": name} for name in stated.authors],
        "purl": about.identifier or _purl(model.file, version, model.sha256),
        "hashes": [{"alg": "SHA-256", "content": model.sha256}],
        "modelCard": {"modelParameters": _parameters(record, datasets)},
        "pedigree": {
            "ancestors": [
                {"type": "machine-learning-model", "name": name} for name in stated.base_models
            ]
        },
        "properties": compose_properties(
            {
                "created-at": record.facts.created_at,
                "training": about.training,
                "exporter": stated.exporter,
                "opset": str(model.opset),
                "nodes": str(model.node_count),
                "size-bytes": str(model.size_bytes),
            }
        ),
    }


def _variant(record: BuildRecord, variant: Variant, datasets: list[str]) -> dict[str, Any]:
    facts = variant.facts
    path = f"{variant.folder}/{variant.model_file}"
    sha256 = next(entry.sha256 for entry in facts.files if entry.path == path)
    requires = facts.requires
    return _what_models_share(record) | {
        "bom-ref": _variant_ref(variant),
        "name": variant.name,
        "description": f"{record.model.file} prepared for the profile {facts.profile}.",
        "purl": _purl(f"{record.facts.name}-{variant.name}", record.facts.version, sha256),
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "modelCard": {
            "modelParameters": _parameters(record, datasets),
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(variant))},
        },
        "components": list(map(_file, facts.files)),
        "properties": compose_properties(
            {
                "created-at": record.facts.created_at,
                "profile": facts.profile,
                "profile-sha256": facts.profile_sha256,
                "precision": facts.precision,
                "provider": variant.provider,
                "device": variant.device,
                "placement": f"{facts.placement.taken} of {facts.placement.total} nodes",
                "requires-runtime": f"{_RUNTIME} {requires.runtime}".rstrip(),
                "requires-arch": requires.arch,
                "requires-cpu-feature": requires.cpu_features,
                "requires-soc": requires.soc,
                "requires-driver": tuple(
                    f"{name} {wanted}" for name, wanted in sorted(requires.drivers.items())
                ),
                "compiled-for": facts.toolchain.compiled_for,
            }
        ),
    }


def _file(entry: FileEntry) -> dict[str, Any]:
    return {
        "type": "file",
        "name": entry.path,
        "hashes": [{"alg": "SHA-256", "content": entry.sha256}],
    }


def _what_models_share(record: BuildRecord) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "version": record.facts.version,
        "manufacturer": {"name": record.about.producer},
        "licenses": compose_licenses(record.about.license or record.stated.license),
        "externalReferences": list(_references(record)),
    }


def _parameters(record: BuildRecord, datasets: list[str]) -> dict[str, Any]:
    about = record.about
    return {
        "task": about.task or record.stated.task,
        "modelArchitecture": about.architecture,
        "datasets": [{"ref": ref} for ref in datasets],
        "inputs": [{"format": text} for text in record.model.inputs],
        "outputs": [{"format": text} for text in record.model.outputs],
    }


def _metrics(variant: Variant) -> Iterator[dict[str, str]]:
    """Yield the measurements on held-out samples."""
    accuracy = variant.facts.accuracy
    values = {accuracy.metric: accuracy.value} | accuracy.details
    for name, value in sorted(values.items()):
        yield {"type": name, "value": _number(value), "slice": variant.name}


def _references(record: BuildRecord) -> Iterator[dict[str, str]]:
    about = record.about
    for kind, url in sorted(about.references.items()):
        yield {"type": kind, "url": url}
    if about.security_contact:
        yield {"type": "security-contact", "url": about.security_contact}
    if about.vulnerabilities:
        yield {"type": "vulnerability-assertion", "url": about.vulnerabilities}


def _library(version: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"{_RUNTIME}@{version}",
        "name": _RUNTIME,
        "version": version,
        "purl": f"pkg:pypi/{_RUNTIME}@{quote(version)}",
    }


def _dependencies(record: BuildRecord, datasets: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the dependencies; a data set of a model is a dependency of the model."""
    refs = [str(dataset["bom-ref"]) for dataset in datasets]
    variants = [_variant_ref(variant) for variant in record.variants]
    yield {"ref": BUNDLE_REF, "dependsOn": variants}
    yield {"ref": SOURCE_REF, "dependsOn": [ref for ref in refs if ref.startswith("training/")]}
    for variant, ref in zip(record.variants, variants, strict=True):
        used = [each for each in refs if not each.startswith("training/")]
        runtime = f"{_RUNTIME}@{variant.facts.toolchain.onnxruntime}"
        yield {"ref": ref, "dependsOn": [SOURCE_REF, runtime, *used]}


def _variant_ref(variant: Variant) -> str:
    return f"variant/{variant.name}"


def _purl(name: str, version: str, sha256: str) -> str:
    checksum = f"?checksum=sha256:{sha256}" if sha256 else ""
    return f"pkg:generic/{quote(name, safe='.-_')}@{quote(version, safe='.-_')}{checksum}"


def _number(value: float) -> str:
    return json.dumps(value)


_PURPOSES = {
    "calibration": "Samples for the ranges of quantization and for the choice of a candidate.",
    "captured": "Inputs that devices captured, for the ranges of quantization.",
    "evaluation": "Held-out samples that the variants were judged by.",
}
_RANDOM = DatasetSection(
    used_for="calibration",
    description="Random numbers in place of samples.",
    provenance="Drawn by the build, with a fixed seed.",
    statistics="Evenly distributed.",
    sensitivity="None: random numbers.",
    license="CC0-1.0",
)


def compose_datasets(record: BuildRecord) -> list[dict[str, Any]]:
    """Return the components; their references begin with the purpose of the data."""
    return list(_components(record))


def _components(record: BuildRecord) -> Iterator[dict[str, Any]]:
    named = dict(record.datasets)
    for samples in record.samples:
        own = [name for name, each in named.items() if each.used_for == samples.used_for]
        if samples.is_random:
            name, told = f"random {samples.used_for} samples", _RANDOM
        elif len(own) == 1:
            name, told = own[0], named.pop(own[0])
        else:
            name, told = f"{samples.used_for} samples", DatasetSection(used_for=samples.used_for)
        yield _component(record, name, told, samples)
    for name, told in sorted(named.items()):
        yield _component(record, name, told, None)
    for name in record.stated.datasets:
        if name not in record.datasets:
            yield _component(record, name, DatasetSection(used_for="training"), None)


def _component(
    record: BuildRecord, name: str, told: DatasetSection, samples: SampleSet | None
) -> dict[str, Any]:
    used_for = samples.used_for if samples else told.used_for
    sha256 = told.sha256 or (samples.sha256 if samples else "")
    taken = counted(samples.count, "sample") if samples else ""
    content = told.content or ("; ".join(record.model.inputs) if samples else "")
    return {
        "type": "data",
        "bom-ref": f"{used_for}/{name}",
        "name": name,
        "description": told.description or _PURPOSES.get(used_for, ""),
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else [],
        "licenses": compose_licenses(told.license),
        "data": [
            {
                "type": "dataset",
                "name": name,
                "contents": {
                    "url": told.identifier,
                    "properties": compose_properties({"content": content, "count": taken}),
                },
                "classification": told.sensitivity,
                "description": told.description or _PURPOSES.get(used_for, ""),
            }
        ],
        "properties": compose_properties(
            {
                "used-for": used_for,
                "identifier": told.identifier or (f"sha256:{sha256}" if sha256 else ""),
                "provenance": told.provenance,
                "statistics": told.statistics or taken,
                "sensitivity": told.sensitivity,
                "samples-sha256": samples.sha256 if samples and told.sha256 else "",
            }
        ),
    }
