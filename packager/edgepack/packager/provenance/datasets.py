"""The data sets of a bill of materials: data sets named by a person, and the samples of the build.

If a single data set is named for calibration (or evaluation), the build's samples are this data
set: the component then has their digest and number. Where none or several are, the samples stand
for themselves.
"""

from collections.abc import Iterator
from typing import Any

from edgepack.packager.config.about import DatasetSection
from edgepack.packager.provenance.record import BuildRecord, SampleSet
from edgepack.packager.provenance.wording import compose_licenses, compose_properties
from edgepack.text import counted

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
