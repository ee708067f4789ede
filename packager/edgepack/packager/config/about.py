"""Description of a model and its data by the user: `[about]` and `[datasets]` of an
`edgepack.toml`.

A build cannot find it out, and anyone that runs the model asks for it: it goes into the bundle's
bill of materials.
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
    """`[about]`: the model, and who answers for it.

    Attributes:
        license: SPDX license expression; `LicenseRef-NAME` for a license that SPDX does not list.
        producer: Organisation or person who made the model.
        authors: Who wrote the bill of materials; the producer where it is left out.
        description: What the model is.
        identifier: Its package URL (`pkg:huggingface/…`), where it has one.
        task: What it does, e.g. `object detection`.
        architecture: E.g. `YOLOX-S`.
        training: How it was trained: hyperparameters, preparation of data, fine-tuning.
        intended_use: What it is for.
        limitations: What it is not for, or does badly.
        data_flow: Where what goes in comes from, and where what comes out goes.
        data_usage: What is done with the data, personal data above all.
        security_controls: What protects the model beyond the bundle's own signature.
        security_compliance: Standards and laws that it was judged by.
        security_contact: URL of the policy on vulnerabilities, e.g. of a security.txt.
        vulnerabilities: URL of what is known of its vulnerabilities (a VEX document).
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
        used_for: `training`, `calibration`, `captured` (by devices) or `evaluation`. Where one data
            set is named for one of the last three, it is what such samples of the build come from.
        description: What is in it.
        content: Kind of data, e.g. `image`, `text`, `audio`, `tabular`.
        identifier: URL or DOI.
        sha256: Digest of its archive; of samples the build knows it.
        provenance: How, when and where it was collected and prepared.
        statistics: Size, classes, known bias.
        sensitivity: Whether it holds personal or confidential data.
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
        about: What was read.
        datasets: By name.
        path: The file, for messages.

    Raises:
        BuildError: A value is not what its key says.
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
