"""Record of a build's inputs at its end."""

from collections.abc import Mapping
from typing import Any

import msgspec

from edgepack.bundle.manifest import BundleFacts, FileEntry, Variant
from edgepack.packager.config.about import AboutSection, DatasetSection, Use
from edgepack.packager.reports.report import ModelReport
from edgepack.packager.source.stated_facts import StatedFacts


class SampleSet(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a build used for a single purpose.

    Attributes:
        used_for: `calibration` (ranges, and the choice between candidates), `captured` (by devices,
            part of calibration) or `evaluation`.
        count: How many.
        sha256: Digest over their contents in order, hex.
        is_random: Whether the samples were drawn, not given.
    """

    used_for: Use
    count: int
    sha256: str
    is_random: bool


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a build read, besides the model and the samples."""

    name: str
    sha256: str


class BuildRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that provenance and bill of materials tell; no times, no paths of the host.

    Attributes:
        facts: The manifest's, but for `files`.
        variants: Variants of the manifest.
        assets: Files for the generation of texts.
        model: The source model.
        stated: Statements in the model's own files.
        about, datasets: Statements of a person.
        samples: Samples of the build.
        materials: Further files: declarations, labels, the profiles' digests are in `variants`.
        external: Requested options.
        builder_id: URI of the builder, as named by the build host's operator.
        host: Kind of machine.
    """

    facts: BundleFacts
    variants: tuple[Variant, ...]
    assets: tuple[FileEntry, ...] = ()
    model: ModelReport
    stated: StatedFacts = StatedFacts()
    about: AboutSection = AboutSection()
    datasets: Mapping[str, DatasetSection] = msgspec.field(default_factory=dict)
    samples: tuple[SampleSet, ...] = ()
    materials: tuple[Material, ...] = ()
    external: Mapping[str, Any] = msgspec.field(default_factory=dict)
    builder_id: str
    host: Mapping[str, str] = msgspec.field(default_factory=dict)


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Return JSON that people can read; the same document always gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
