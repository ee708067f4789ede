"""Result of a variant in plain ONNX Runtime, for users of the file outside the bundle.

A variant is evaluated with the agent's settings. Without these settings ONNX Runtime's optimizer
may fuse operators that must stay separate, and its 8-bit kernels may saturate. So the variant runs
once more with ONNX Runtime's own settings, on the CPU, and on its own provider if another provider
runs here or in a toolchain. If the result is wrong, the bundle states the required settings.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import onnxruntime
from msgspec.structs import replace

from edgepack.agent.runtime.opening import GRAPH_OPTIMIZATION, MEMORY_PATTERN
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.bundle.manifest import PlainRuntime
from edgepack.errors import BuildError
from edgepack.number_format import format_metric
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.graph.saturation import EXACT_SUMS, may_saturate
from edgepack.packager.pipeline.holdout_verdict import judge_on_holdout
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import EvaluationInputs, SearchedCombination
from edgepack.packager.progress import BuildStep
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.plain_runtime import PlainRelease

_UNPLANNED = {MEMORY_PATTERN: "0"}
"""ONNX Runtime 1.18 plans memory so that some models are wrong from the second inference on."""

_SETTINGS: tuple[dict[str, str], ...] = (
    {},
    _UNPLANNED,
    *({GRAPH_OPTIMIZATION: level} for level in ("extended", "basic", "disable_all")),
    {GRAPH_OPTIMIZATION: "disable_all"} | _UNPLANNED,
)
"""Tried in this order, the fastest first; where no time is left, the first and the last one."""


class PlainCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check.

    Attributes:
        found: On the CPU provider, for the manifest; None without a run.
        on_provider: The same on the variant's own provider, where that is another.
        notes: For people; none where ONNX Runtime's own settings will do.
    """

    found: PlainRuntime | None = None
    on_provider: PlainRuntime | None = None
    notes: tuple[str, ...] = ()


def check_plain_runtime(
    model: Path,
    searched: SearchedCombination,
    verdict: Verdict,
    inputs: EvaluationInputs,
    releases: Sequence[PlainRelease],
    resources: Resources,
) -> PlainCheck:
    """Run a variant's model in ONNX Runtime by itself.

    Args:
        model: Its file, with the outputs that are only watched.
        searched: The candidate, and the place of its measurement.
        verdict: Its verdict there: the result is right if it reaches that value, or the budget.
        inputs: Have the held-out samples.
        releases: Releases of ONNX Runtime to run.
        resources: Remaining time, journal, provider process, and receiver of progress.
    """
    if searched.evaluator.is_on_cpu and not searched.profile.provider.session and not releases[1:]:
        return PlainCheck(found=PlainRuntime(releases=(releases[0].release,), right=True))
    check = PlainCheck()
    try:
        with resources.limit.build.interrupting():
            check = _check(model, searched, verdict, inputs, releases, resources)
            for own in _own_provider(searched):
                there = _check(model, searched, verdict, inputs, (own,), resources)
                notes = (*check.notes, *there.notes)
                check = replace(check, on_provider=there.found, notes=notes)
    except OutOfTimeError:
        note = "Not run to the end in ONNX Runtime by itself: the time was used up."
        return replace(check, notes=(*check.notes, note))
    return check


def _own_provider(searched: SearchedCombination) -> Iterator[PlainRelease]:
    """Yield the variant's own provider, unless that is the CPU's, a simulator, or elsewhere."""
    venue, settings = searched.venue, profile_settings(searched.profile)
    if settings.provider == CPU_PROVIDER or venue.is_simulated or venue.boards:
        return
    if venue.toolchain is not None:
        python, release = venue.toolchain.python, venue.toolchain.facts.runtime
        yield PlainRelease(release=release, python=python, on=settings)
    elif venue.is_native:  # in another process: what the agent avoids may crash
        yield PlainRelease(release=onnxruntime.__version__, python=sys.executable, on=settings)


def _check(
    model: Path,
    searched: SearchedCombination,
    verdict: Verdict,
    inputs: EvaluationInputs,
    releases: Sequence[PlainRelease],
    resources: Resources,
) -> PlainCheck:
    is_on_cpu = releases[0].on.provider == CPU_PROVIDER
    exact = EXACT_SUMS if is_on_cpu and may_saturate(load_model(model).graph) else {}
    gate = searched.profile.gates.accuracy
    missed = ""
    for settings in _SETTINGS:
        if resources.limit.left_s == 0.0 and settings not in (_SETTINGS[0], _SETTINGS[-1]):
            continue  # what is published is looked at all the same
        options = {**exact, **settings}
        for place in releases:
            resources.progress(BuildStep(what="ONNX Runtime by itself", detail=place.release))
            try:
                with place.open(model, options, resources.limit.build) as run:
                    got = judge_on_holdout(run, gate, inputs).verdict
            except BuildError as error:
                wrong = f"{place.release}: {error.problem}"
            else:
                if got.passed or got.value >= verdict.value:
                    continue
                wrong = f"{place.release}: {got.what} {format_metric(got.value)}"
            missed = missed or wrong
            break
        else:
            needed = options if settings.get(GRAPH_OPTIMIZATION) != "disable_all" else settings
            return _right(needed, missed, place, releases)
    others = [release for release in releases if release is not place]
    rest = PlainCheck(found=PlainRuntime(releases=_versions(releases), right=False))
    if others:
        rest = _check(model, searched, verdict, inputs, others, resources)
    note = f"{place.words} does not run it as well, with whatever settings ({wrong})."
    return replace(rest, notes=(note, *rest.notes))


def _right(
    needed: dict[str, str], missed: str, place: PlainRelease, releases: Sequence[PlainRelease]
) -> PlainCheck:
    found = PlainRuntime(releases=_versions(releases), right=True, session_options=needed)
    if not needed:
        return PlainCheck(found=found)
    settings = ", ".join(f"{key}={value}" for key, value in needed.items())
    because = missed or "sums of products of its weights saturate on x86 CPUs without VNNI"
    on = f" on {place.on.provider}" if place.on.provider != CPU_PROVIDER else ""
    note = f"ONNX Runtime by itself{on} needs {settings} to run it as well ({because})."
    return PlainCheck(found=found, notes=(note,))


def _versions(releases: Sequence[PlainRelease]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place.release for place in releases))
