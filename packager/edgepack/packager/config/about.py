"""Description of a model and its data by the user: `[about]` and `[datasets]` of an
`edgepack.toml`.

A build cannot find these facts, and every user of the model needs them: the bundle's bill of
materials contains all.
"""

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from edgepack.errors import BuildError
from edgepack.packager.profiles.section import Section

Words = Annotated[str, msgspec.Meta(max_length=4000)]
Use = Literal["training", "calibration", "captured", "evaluation"]

_REFERENCES = ("documentation", "distribution", "license", "model-card", "vcs", "website")
"""Types of references that a model has, as CycloneDX calls them."""


class AboutSection(Section, frozen=True, kw_only=True):
    """`[about]`: the model, and its responsible people.

    Attributes:
        license: SPDX license expression; `LicenseRef-NAME` for a license that SPDX does not list.
        producer: Organisation or person that made the model.
        authors: Authors of the bill of materials; by default the producer.
        description: Description of the model.
        identifier: Its package URL (`pkg:huggingface/…`), if any.
        task: Task of the model, e.g. `object detection`.
        architecture: E.g. `YOLOX-S`.
        training: Training method: hyperparameters, preparation of data, fine-tuning.
        intended_use: Intended use.
        limitations: Unsuitable uses, and weaknesses.
        data_flow: Source of the inputs, and destination of the outputs.
        data_usage: Use of the data, personal data above all.
        security_controls: Protection of the model beyond the bundle's own signature.
        security_compliance: Standards and laws that the model was assessed against.
        security_contact: URL of the policy on vulnerabilities, e.g. of a security.txt.
        vulnerabilities: URL of the known vulnerabilities (a VEX document).
        security_metrics: Numbers by name, e.g. of robustness against attacks.
        references: URLs by kind: documentation, distribution, license, model-card, vcs, website.
    """

    license: Words = ""
    producer: Words = ""
    authors: tuple[Words, ...] = ()
    description: Words = ""
    identifier: Words = ""
    task: Words = ""
    architecture: Words = ""
    training: Words = ""
    intended_use: Words = ""
    limitations: tuple[Words, ...] = ()
    data_flow: Words = ""
    data_usage: Words = ""
    security_controls: tuple[Words, ...] = ()
    security_compliance: tuple[Words, ...] = ()
    security_contact: Words = ""
    vulnerabilities: Words = ""
    security_metrics: dict[str, float] = msgspec.field(default_factory=dict)
    references: dict[str, str] = msgspec.field(default_factory=dict)


class DatasetSection(Section, frozen=True, kw_only=True):
    """`[datasets.NAME]`: data that the model was made or judged with.

    Attributes:
        used_for: `training`, `calibration`, `captured` (by devices) or `evaluation`. If a single
            data set is named for any of the last three, the build's samples for that purpose come
            from this data set.
        description: Content of the data set.
        content: Kind of data, e.g. `image`, `text`, `audio`, `tabular`.
        identifier: URL or DOI.
        sha256: Digest of its archive; known by the build for samples.
        provenance: Method, time and place of collection and preparation.
        statistics: Size, classes, known bias.
        sensitivity: Presence of personal or confidential data.
        license: SPDX license expression.
    """

    used_for: Use
    description: Words = ""
    content: Words = ""
    identifier: Words = ""
    sha256: str = ""
    provenance: Words = ""
    statistics: Words = ""
    sensitivity: Words = ""
    license: Words = ""


def check_about(
    about: AboutSection, datasets: Mapping[str, DatasetSection], path: str
) -> tuple[AboutSection, dict[str, DatasetSection]]:
    """Reject licenses, digests and URLs that are none, and spells licenses as SPDX does.

    Args:
        about: The section as read.
        datasets: By name.
        path: The file, for messages.

    Raises:
        BuildError: A value does not fit its key.
    """
    place = f"{path}, about"
    about = replace(
        about, license=_license(about.license, f"{place}.license") if about.license else ""
    )
    for key, url in (
        ("security_contact", about.security_contact),
        ("vulnerabilities", about.vulnerabilities),
        *((f"references.{kind}", url) for kind, url in about.references.items()),
    ):
        _check_url(url, f"{place}.{key}")
    for kind in about.references:
        if kind not in _REFERENCES:
            raise BuildError(
                f"'{kind}' is not a kind of reference; allowed are: {', '.join(_REFERENCES)}",
                found_in=f"{place}.references",
            )
    if about.identifier and not about.identifier.startswith("pkg:"):
        raise BuildError(
            "identifier is not a package URL",
            found_in=f"{place}.identifier",
            remedy='identifier = "pkg:huggingface/OWNER/NAME@REVISION"',
        )
    checked = {}
    for name, dataset in datasets.items():
        where = f"{path}, datasets.{name}"
        digest = dataset.sha256.lower()
        if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
            raise BuildError(
                "sha256 is not a SHA-256 digest",
                found_in=f"{where}.sha256",
                remedy="64 hexadecimal digits, as sha256sum prints them",
            )
        named = _license(dataset.license, f"{where}.license") if dataset.license else ""
        checked[name] = replace(dataset, sha256=digest, license=named)
    return about, checked


def _license(expression: str, found_in: str) -> str:
    try:
        return str(canonicalize_license_expression(expression))
    except InvalidLicenseExpression as error:
        raise BuildError(
            f"{expression!r} is not an SPDX license expression",
            found_in=found_in,
            remedy='license = "Apache-2.0", or "LicenseRef-NAME" for one that SPDX does not list',
        ) from error


def _check_url(url: str, found_in: str) -> None:
    parts = urlsplit(url)
    if url and not (parts.scheme in ("https", "http", "mailto") and (parts.netloc or parts.path)):
        raise BuildError(
            f"{url!r} is not a URL", found_in=found_in, remedy='write it whole: "https://…"'
        )
