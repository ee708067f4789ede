"""Writing of reports next to bundles, also for refused builds."""

from pathlib import Path

from edgepack.durable import write_file
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.pipeline.build_samples import OpenedBuild
from edgepack.packager.pipeline.report_composition import compose_refusal
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.own_names import name_in_report, own_names
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import RefusedProfile, Report, encode_report
from edgepack.packager.runtime.board import BoardError


def report_refusals(
    opened: OpenedBuild, refused: tuple[RefusedProfile, ...], notes: tuple[str, ...]
) -> str:
    """Write the report of a build that makes no bundle, and state where; "" if nothing is known.

    The report has the bundle's report path, or lies next to the report of an older bundle.
    """
    if not any(entry.best for entry in refused):
        return ""
    report = compose_refusal(opened, refused, notes)
    report = name_in_report(report, own_names(opened.source.model.graph))
    output = opened.request.output
    html, _ = write_report(report, output, "refused." if output.exists() else "")
    return f"{html} tells what was tried"


def write_report(report: Report, output: Path, prefix: str = "") -> tuple[Path, Path]:
    """Write a report next to a bundle, and state where: the page and the JSON."""
    html, json = (
        output.with_name(f"{output.name}.{prefix}report.{suffix}") for suffix in ("html", "json")
    )
    write_file(html, render_report(report).encode())
    write_file(json, encode_report(report))
    return html, json


def refusal_error(
    profile: Profile, error: EdgepackError, report: str, *, several: bool
) -> BuildError:
    """Return a profile's refusal as the build's: the error names the profile, the report and the
    alternative.
    """
    problem = error.problem
    if isinstance(error, BoardError):
        problem = f"profile {profile.name!r} was not proven: {problem}"
    elif profile.name not in problem:
        problem = f"profile {profile.name!r} refuses: {problem}"
    hint = "--keep-going builds the other profiles" if several else ""
    remedy = "; or: ".join(part for part in (error.remedy, hint) if part)
    return BuildError(problem, found_in=error.found_in, remedy=join_remedies(remedy, report))


def join_remedies(remedy: str, report: str) -> str | None:
    """Return a remedy, and where to read more; None where there is neither."""
    return ". ".join(part for part in (remedy, report) if part) or None
