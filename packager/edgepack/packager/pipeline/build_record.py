"""Puts together where a bundle came from, for its provenance and its bill of materials."""

import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepack.packager.bundling.assemble import BundleParts, LaidOut
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.pipeline.build_samples import OpenedBuild
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.provenance.record import BuildRecord, Material, SampleSet
from edgepack.packager.reports.report import Report
from edgepack.packager.samples.files import RANDOM_PREFIX
from edgepack.packager.samples.split import CapturedSamples


def compose_record(
    opened: OpenedBuild, parts: BundleParts, laid_out: LaidOut, report: Report
) -> BuildRecord:
    """Return the record of a build: no times, and only the last part of paths.

    Args:
        opened: The request, the model, and the samples.
        parts: Content of the bundle.
        laid_out: The same, with digests.
        report: Describes the model for people.
    """
    request, samples = opened.request, opened.samples
    split = samples.split
    is_random = samples.opened.is_random
    return BuildRecord(
        facts=parts.facts,
        variants=laid_out.variants,
        assets=laid_out.assets,
        model=report.model,
        stated=opened.source.stated,
        about=request.about,
        datasets=request.datasets,
        samples=(
            SampleSet(
                used_for="calibration",
                count=split.calibration.count + split.search.count,
                sha256=split.sha256,
                is_random=is_random,
            ),
            SampleSet(
                used_for="evaluation",
                count=split.held_out.count,
                sha256=split.held_out_sha256,
                is_random=is_random and not _is_given(request.evaluation),
            ),
            *_captured(samples.captured),
        ),
        materials=(*_materials(request), *_base(parts)),
        external=_external(request),
        builder_id=request.builder_id,
        host={"machine": platform.machine(), "system": platform.system()},
    )


def _captured(captured: CapturedSamples) -> Iterator[SampleSet]:
    if captured.count:
        yield SampleSet(
            used_for="captured", count=captured.count, sha256=captured.sha256, is_random=False
        )


def _is_given(evaluation: object) -> bool:
    return bool(evaluation) and not str(evaluation).startswith(RANDOM_PREFIX)


def _materials(request: BuildRequest) -> Iterator[Material]:
    declared_in = Path(request.declared_in) if request.declared_in else None
    for path in (declared_in, request.labels, request.feedback):
        if path is not None:
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            yield Material(name=path.name, sha256=sha256)


def _base(parts: BundleParts) -> Iterator[Material]:
    """Yield the base of an adapter, by its bundle's digest."""
    adapter = parts.facts.adapter
    if adapter is not None:
        yield Material(name=f"{adapter.base}-{adapter.base_version}", sha256=adapter.base_digest)


def _external(request: BuildRequest) -> dict[str, Any]:
    """Return the options of the build, without unset options."""
    asked: dict[str, Any] = {
        "model": request.model.name,
        "name": request.name,
        "version": request.version,
        "release": request.release,
        "profiles": [Path(name).name for name in request.profiles],
        "calibration": _where(request.calibration),
        "evaluation": _where(request.evaluation),
        "labels": request.labels.name if request.labels else "",
        "metric": _name(request.metric),
        "search": {each.key: list(each.values) for each in request.searched},
        "budget_s": request.budget_s,
        "prefer": request.prefer,
        "shapes": {name: list(shape) for name, shape in request.shapes.items()},
        "values": {name: list(values) for name, values in request.values.items()},
        "context": request.context,
        "adapters": request.adapters,
        "toolchains": sorted(request.toolchains),
        "boards": len(request.prove) or None,
        "hooks": request.hooks.name if request.hooks else "",
        "firmware": [one.file.name for one in request.firmware],
        "captured": [path.name for path in request.captured],
        "feedback": request.feedback.name if request.feedback else "",
        "allow_degraded": request.allow_degraded,
        "keep_going": request.keep_going,
    }
    return {
        name: value
        for name, value in asked.items()
        if value is not False and value not in (None, "", [], {})
    }


def _name(metric: Metric | None) -> str:
    """Return a metric of the user's own as `module:function`; "" where there is none."""
    if metric is None:
        return ""
    kind = metric if hasattr(metric, "__qualname__") else type(metric)
    return f"{kind.__module__}:{kind.__qualname__}"


def _where(samples: object) -> str:
    """Return the source of samples: a file's or folder's name, `random:N`, or arrays."""
    if not samples:
        return ""
    if not isinstance(samples, str | Path):
        return "arrays"
    return str(samples) if str(samples).startswith(RANDOM_PREFIX) else Path(samples).name
