"""Last steps of every build: report, signature, rehearsal, encryption, publication."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from edgepack.bundle.keys import PublicKey
from edgepack.bundle.signing_keys import SigningKey
from edgepack.packager.bundling.assemble import BundleParts, LaidOut, encrypt_files, finish
from edgepack.packager.bundling.output import publish
from edgepack.packager.bundling.prepared_variant import PreparedVariants
from edgepack.packager.bundling.rehearse import Rehearsal
from edgepack.packager.pipeline.build_record import compose_record
from edgepack.packager.pipeline.build_samples import OpenedBuild
from edgepack.packager.pipeline.fleet_feedback import Learnt
from edgepack.packager.pipeline.report_composition import add_times, compose_report, write_report
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.minimum_elements import count_elements
from edgepack.packager.provenance.record import BuildRecord
from edgepack.packager.reports.own_names import name_in_report, own_names
from edgepack.packager.reports.report import RefusedProfile, Report, VariantReport


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a build.

    Attributes:
        output: The bundle.
        digest: Its digest, hex.
        report: The report with times.
        report_html, report_json: Paths of the report, next to the bundle.
        unsaid: Names of the G7's minimum elements that the bill of materials lacks.
    """

    output: Path
    digest: str
    report: Report
    report_html: Path
    report_json: Path
    unsaid: tuple[str, ...] = ()

    @property
    def variants(self) -> Mapping[str, VariantReport]:
        """Built variants, by the profile's name."""
        return {variant.profile: variant for variant in self.report.variants}

    @property
    def refused(self) -> tuple[RefusedProfile, ...]:
        """Profiles without a variant: with `keep_going`, or where the time of the build ended."""
        return self.report.refused


class Closing(msgspec.Struct, frozen=True, kw_only=True):
    """Means of the last steps.

    Attributes:
        key: Signs the bundle.
        recipients: Recipients of an encrypted bundle; none for a plain one.
        rehearse: Rehearses the signed bundle in a folder.
        learnt: Feedback of a fleet.
        to_prove: Names of the variants that boards were to prove.
    """

    key: SigningKey
    recipients: tuple[PublicKey, ...]
    rehearse: Callable[[Path], Rehearsal]
    learnt: Learnt = Learnt()
    to_prove: Collection[str] = ()


def close_build(
    opened: OpenedBuild,
    parts: BundleParts,
    laid_out: LaidOut,
    prepared: PreparedVariants,
    closing: Closing,
    folder: Path,
    progress: Progress,
) -> BuildResult:
    """Sign, rehearse, encrypt and publish a bundle.

    Args:
        opened: The request, the model, and the samples.
        parts, laid_out: The bundle.
        prepared: Its variants.
        closing: Means of these steps.
        folder: The folder that `lay_out` filled, in the build's work folder.
        progress: Called for each step.

    Raises:
        EdgepackError: The rehearsal failed, or the bundle cannot be written.
    """
    request, spell = opened.request, own_names(opened.source.model.graph)

    def sign(parts: BundleParts, laid_out: LaidOut) -> tuple[str, Report, BuildRecord]:
        """Write report and documents, and sign; the report has no times."""
        report = compose_report(opened, parts, laid_out, prepared, closing.learnt, closing.to_prove)
        report = name_in_report(report, spell)
        record = compose_record(opened, parts, laid_out, report)
        return finish(folder, parts, laid_out, report, record, closing.key), report, record

    digest, report, record = sign(parts, laid_out)
    rehearsal = closing.rehearse(folder)
    if closing.recipients:
        progress(BuildStep(what="encrypting the bundle"))
        digest, report, record = sign(*encrypt_files(folder, parts, laid_out, closing.recipients))
    publish(folder, request.output, folder.parent)
    timed = name_in_report(add_times(report, prepared, rehearsal), spell)
    html, json = write_report(timed, request.output)
    return BuildResult(
        output=request.output,
        digest=digest,
        report=timed,
        report_html=html,
        report_json=json,
        unsaid=count_elements(compose_bill(record))[1],
    )
