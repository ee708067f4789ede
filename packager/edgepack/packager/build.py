"""`edgepack build`, from the model file to the signed and rehearsed bundle.

1. Refuse early: output, key, profiles, model, declarations, hooks, samples, one after another.
2. Divide the samples.
3. Prepare a variant for each profile.
4. Choose golden samples.
5. Lay the bundle out, write its report, sign it.
6. Rehearse it with the agent's own verifier, matching, probe and choice.
7. Move it to its place in one step, and put the report with times beside it.

All work lies in a hidden folder beside the output, which is removed whatever happens: a build
that fails, is interrupted or fills the disk leaves what was there before. Only a report of what was
tried stays, where gates refused, and what a search measured (`search/journal.py`).
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.agent.hooks.runner import check_hook_folder
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.durable import flush_folder, write_file
from edgepack.errors import BuildError, DeviceError, EdgepackError, ProfileError
from edgepack.packager.bundling.assemble import BundleParts, finish, lay_out
from edgepack.packager.bundling.output import check_output
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.bundling.tool_versions import tool_versions
from edgepack.packager.exploring import SearchPlan
from edgepack.packager.huggingface.folder import open_source
from edgepack.packager.inputs import InputDeclaration, check_declarations
from edgepack.packager.judging.accuracy import Metric
from edgepack.packager.judging.labels import LabelledSamples, open_labelled
from edgepack.packager.profile.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.recipe import prepare_variant
from edgepack.packager.reports.composing import (
    Material,
    add_times,
    compose_refusal,
    compose_report,
    report_refusal,
)
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import RefusedProfile, Report, encode_report
from edgepack.packager.samples.carried_states import follow_states
from edgepack.packager.samples.coverage import describe_coverage
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.samples.golden_choice import choose_golden
from edgepack.packager.samples.split import describe, split_samples
from edgepack.packager.search.combinations import Combination, SearchedKey, combine
from edgepack.packager.search.journal import Journal, journal_folder
from edgepack.packager.search.time_limit import share_time
from edgepack.packager.source.model import SourceModel, static_or_error
from edgepack.packager.variant import PreparedVariant

RANDOM_WHEN_NONE = "random:16"
"""Samples where no profile calibrates and none were given: enough to compare outputs."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What is to be built.

    Attributes:
        model: The ONNX file, or a local Hugging Face model folder.
        output: An archive where it ends in `.edgepack`, else a folder.
        name, version, release, created_at: See `BundleFacts`.
        profiles: Names or paths, in the order of preference.
        key: Private key file, PEM.
        calibration, evaluation: Paths, `random:N`, or "" for none.
        shapes: Shapes to fix by input name.
        declarations: Declared inputs by name, and the file they came from.
        metric: The user's own metric, or None for the profile's.
        labels: File with the class of each evaluation sample, or None.
        searched: Settings with several values to try.
        budget_s: Seconds that the search may take; None for no limit.
        hooks: Folder of firmware hooks to ship, or None.
        allow_degraded: Publish a variant that misses its budget, marked as degraded.
        keep_going: Build the other profiles when one refuses.
        replace: Whether an existing bundle at `output` is replaced.
    """

    model: Path
    output: Path
    name: str
    version: str
    release: int
    created_at: str = ""
    profiles: tuple[str, ...]
    key: Path
    calibration: str = ""
    evaluation: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    declarations: Mapping[str, InputDeclaration] = field(default_factory=dict)
    declared_in: str = ""
    metric: Metric | None = None
    labels: Path | None = None
    searched: tuple[SearchedKey, ...] = ()
    budget_s: float | None = None
    hooks: Path | None = None
    allow_degraded: bool = False
    keep_going: bool = False
    replace: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What was built.

    Attributes:
        output: The bundle.
        digest: Its digest, hex.
        report: The report with times.
        report_html, report_json: Where it lies, beside the bundle.
    """

    output: Path
    digest: str
    report: Report
    report_html: Path
    report_json: Path


def build(request: BuildRequest, progress: Progress) -> BuildResult:
    """Builds, signs and rehearses a bundle.

    Args:
        request: What to build.
        progress: Told how far it is.

    Raises:
        EdgepackError: Anything that keeps a bundle from being made; nothing is left behind.
    """
    try:
        return _build(request, progress)
    except OSError as error:
        raise _disk_error(error, request.output) from error


def _build(request: BuildRequest, progress: Progress) -> BuildResult:
    # 1
    check_output(request.output, replace=request.replace)
    key = load_private_key(request.key)
    combinations = _load_combinations(request.profiles, request.searched)
    profiles = tuple(entries[0].profile for entries in combinations)
    if request.hooks is not None:
        check_hook_folder(request.hooks)
    with _work_folder(request.output) as work:
        source = open_source(request.model, request.shapes, work, progress)
        check_declarations(dict(request.declarations), source.inputs, request.declared_in)
        if not request.keep_going:
            for profile in profiles:
                _check_shapes(source, profile)
        material = _open_material(request, source, profiles, work, progress)  # 2
        # 3
        variants, refused = _prepare_all(request, source, combinations, material, work, progress)
        profiles = _taken(combinations, variants)
        # 4
        golden = choose_golden(source, material.split.held_out, work, progress)
        # 5
        parts = BundleParts(
            name=request.name,
            version=request.version,
            release=request.release,
            created_at=request.created_at,
            source_sha256=source.sha256,
            tools=tool_versions(),
            variants=variants,
            golden=golden,
            hooks=request.hooks,
        )
        folder = work / "bundle"
        folder.mkdir()
        laid_out = lay_out(folder, parts)
        report = compose_report(parts, laid_out, source, material, golden, profiles, refused)
        digest = finish(folder, parts, laid_out, report, key)
        # 6
        rehearsal = rehearse(folder, key.public_key(), progress)
        # 7
        _publish(folder, request.output, work)
    timed = add_times(report, variants, refused, rehearsal)
    html, json = _write_report(timed, request.output)
    return BuildResult(
        output=request.output, digest=digest, report=timed, report_html=html, report_json=json
    )


def _load_combinations(
    names: tuple[str, ...], searched: tuple[SearchedKey, ...]
) -> tuple[tuple[Combination, ...], ...]:
    """Each profile in every combination that is searched, all checked."""
    if not names:
        raise BuildError(
            "no profile was named: for which hardware is the bundle?",
            remedy="--profile cpu  (edgepack profiles list shows all)",
        )
    combinations: dict[str, tuple[Combination, ...]] = {}
    for entries in combine(names, searched):
        name = entries[0].profile.name
        if name in combinations:
            raise ProfileError(f"profile {name!r} is named twice", remedy="name each profile once")
        combinations[name] = entries
    return tuple(combinations.values())


def _taken(
    combinations: tuple[tuple[Combination, ...], ...], variants: tuple[PreparedVariant, ...]
) -> tuple[Profile, ...]:
    """Each profile with the values that its variant was made with."""
    made = {variant.profile_sha256 for variant in variants}
    return tuple(
        next(
            (entry.profile for entry in entries if entry.profile.sha256 in made),
            entries[0].profile,
        )
        for entries in combinations
    )


def _check_shapes(source: SourceModel, profile: Profile) -> None:
    if profile.limits.static_shapes:
        static_or_error(source, profile.name)


def _open_material(
    request: BuildRequest,
    source: SourceModel,
    profiles: tuple[Profile, ...],
    work: Path,
    progress: Progress,
) -> Material:
    calibrating = [profile.name for profile in profiles if profile.lowering is not None]
    calibration, notes = request.calibration, []
    if not calibration and calibrating:
        raise BuildError(
            f"profile {calibrating[0]!r} calibrates and no samples were given",
            remedy="--calibration PATH with 100 to 300 real samples (a folder of .npz, .npy or "
            "images, one .npz, or ONNX test data); --calibration random:100 only to try it out",
        )
    if not calibration:
        calibration = request.evaluation or RANDOM_WHEN_NONE
        notes.append(f"No calibration samples were given; {calibration} took their place.")
    opened = _open_given(calibration, request, source, work / "states", progress)
    notes += opened.notes
    evaluation = None
    if request.evaluation and request.evaluation != calibration:
        evaluation = _open_given(
            request.evaluation, request, source, work / "held-out-states", progress
        )
        notes += [note for note in evaluation.notes if note not in notes]
    split = split_samples(opened, evaluation)
    notes.append(f"The samples were divided: {describe(split)}.")
    notes += describe_coverage(split, source.inputs, request.declarations)
    return Material(
        opened=opened,
        split=split,
        notes=(*source.notes, *notes),
        labelled=_open_labels(request, source),
    )


def _open_labels(request: BuildRequest, source: SourceModel) -> LabelledSamples | None:
    if request.labels is None:
        return None
    if request.metric is not None or not request.evaluation:
        raise BuildError(
            "labels and a metric were given: which decides?"
            if request.metric is not None
            else "labels were given, and no evaluation samples that they belong to",
            found_in="--labels",
            remedy="--evaluation PATH --labels FILE, or --metric alone",
        )
    return open_labelled(request.labels, request.evaluation, source.inputs, request.declarations)


def _open_given(
    where: str, request: BuildRequest, source: SourceModel, folder: Path, progress: Progress
) -> OpenedSamples:
    opened = open_samples(where, source.inputs, request.declarations, progress)
    return follow_states(
        opened,
        source,
        request.declarations,
        request.declared_in,
        folder=folder,
        progress=progress,
    )


def _prepare_all(
    request: BuildRequest,
    source: SourceModel,
    combinations: tuple[tuple[Combination, ...], ...],
    material: Material,
    work: Path,
    progress: Progress,
) -> tuple[tuple[PreparedVariant, ...], tuple[RefusedProfile, ...]]:
    variants, refused = [], []
    limits = share_time(request.budget_s, len(combinations))
    for entries in combinations:
        profile = entries[0].profile
        journal = Journal(journal_folder(request.output) / f"{profile.name}.jsonl")
        folder = work / "variants" / profile.name
        folder.mkdir(parents=True)
        try:
            _check_shapes(source, profile)
            variants.append(
                prepare_variant(
                    source,
                    profile,
                    material.split,
                    work_dir=folder,
                    progress=_for_profile(progress, profile.name),
                    allow_degraded=request.allow_degraded,
                    metric=request.metric,
                    labelled=material.labelled,
                    plan=SearchPlan(
                        combinations=entries,
                        limit=next(limits),
                        journal=journal,
                    ),
                )
            )
        except (BuildError, DeviceError, ProfileError) as error:
            if not request.keep_going:
                built = tuple(f"{v.name} was built, and is not published." for v in variants)
                hint = _report_refusals(
                    request, source, material, (report_refusal(profile.name, error),), built
                )
                raise _refusal(profile, error, hint, several=len(combinations) > 1) from error
            refused.append(report_refusal(profile.name, error))
    if not variants:
        reasons = "; ".join(f"{entry.profile}: {entry.problem}" for entry in refused)
        hint = _report_refusals(request, source, material, tuple(refused), ())
        raise BuildError(
            f"no profile could be built: {reasons}", remedy=_join(refused[0].remedy, hint)
        )
    return tuple(variants), tuple(refused)


def _report_refusals(
    request: BuildRequest,
    source: SourceModel,
    material: Material,
    refused: tuple[RefusedProfile, ...],
    notes: tuple[str, ...],
) -> str:
    """Writes the report of a build that makes no bundle, and says where; "" if nothing is known.

    It lies where the bundle's report would; beside that of an older bundle, if there is one.
    """
    if not any(entry.best for entry in refused):
        return ""
    report = compose_refusal(
        request.name, request.version, request.release, source, material, refused, notes
    )
    prefix = "refused." if request.output.exists() else ""
    html = _write_report(report, request.output, prefix)[0]
    return f"{html} tells what was tried"


def _write_report(report: Report, output: Path, prefix: str = "") -> tuple[Path, Path]:
    html, json = (_beside(output, f"{prefix}report.{suffix}") for suffix in ("html", "json"))
    write_file(html, render_report(report).encode())
    write_file(json, encode_report(report))
    return html, json


def _refusal(profile: Profile, error: EdgepackError, report: str, *, several: bool) -> BuildError:
    problem = error.problem
    if profile.name not in problem:
        problem = f"profile {profile.name!r} refuses: {problem}"
    hint = "--keep-going builds the other profiles" if several else ""
    remedy = "; or: ".join(part for part in (error.remedy, hint) if part)
    return BuildError(problem, found_in=error.found_in, remedy=_join(remedy, report))


def _join(remedy: str, report: str) -> str | None:
    return ". ".join(part for part in (remedy, report) if part) or None


def _for_profile(progress: Progress, name: str) -> Progress:
    def prefixed(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    return prefixed


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A hidden folder beside the output, on its file system, gone at the end."""
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work)


def _publish(folder: Path, output: Path, work: Path) -> None:
    """Gives the bundle its name; one that is replaced is moved aside first, then removed."""
    if output.suffix == ".edgepack":
        pack(folder, output)
        return
    if output.exists():
        output.rename(work / "replaced")
    folder.rename(output)
    flush_folder(output.parent)


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(f"{output.name}.{suffix}")


def _disk_error(error: OSError, output: Path) -> BuildError:
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(output.parent).free
        return BuildError(
            f"the disk is full: {free:,} bytes are left; nothing was written to {output.name}",
            found_in=str(error.filename or output.parent),
            remedy="free some space, or name an output on another disk with -o",
        )
    reason = error.strerror or os.strerror(error.errno or 0)
    return BuildError(
        f"the build cannot read or write a file: {reason}",
        found_in=str(error.filename or output),
        remedy="check the path and its permissions",
    )
