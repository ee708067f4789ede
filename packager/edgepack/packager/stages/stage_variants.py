"""Variants of single stages: each graph is built like a model of its own.

A stage's samples are what the float pipeline gives it. Its own gate only steers its search, with
its part of the pipeline's budget: the gate at the end of the pipeline decides.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.boards.reach import Boards
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.pipeline.build_samples import OpenedBuild, open_build_samples
from edgepack.packager.pipeline.check_request import check_request
from edgepack.packager.pipeline.open_model import open_model
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.pipeline.variants import prepare_variants
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.progress import Progress, for_profile
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.stages.fixed_stages import FixedStage, find_difference, fix_stage
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import (
    PIPELINE_FILE,
    PipelineSource,
    StageSource,
)
from edgepack.packager.stages.pipeline_samples import PipelineSamples
from edgepack.packager.stages.plans import budget_of


class StageBuilder:
    """Builds stages for profiles, each pair once.

    Args:
        source: The pipeline.
        request: The request of the whole build.
        floats: The float pipeline.
        samples: Samples; only those for calibration are used.
        work: Folder for everything that is written.
        progress: Called for each step.
        deadline: End of the build's time; each stage gets an equal part of what is left.
        count: Pairs of stages and profiles that are to be built.
    """

    def __init__(
        self,
        source: PipelineSource,
        request: BuildRequest,
        floats: FloatPipeline,
        samples: PipelineSamples,
        work: Path,
        progress: Progress,
        deadline: Deadline,
        count: int,
    ) -> None:
        self._source, self._request, self._floats = source, request, floats
        self._samples, self._work, self._progress = samples, work, progress
        self._deadline, self._count = deadline, count
        self._built: dict[tuple[str, str], PreparedVariant] = {}
        self._fixed: dict[str, FixedStage] = {}
        self._of_fixed: set[tuple[str, str]] = set()
        self._recorded: dict[tuple[str, str], Path] = {}

    def build(self, stage: str, profile: str) -> PreparedVariant:
        """Return the variant of a stage for a profile.

        Raises:
            EdgepackError: The profile does not exist, or its variant cannot be made; the error
                names stage and profile.
        """
        found = self._built.get((stage, profile))
        if found is None:
            found = self._built[stage, profile] = self._build(stage, profile)
        return found

    def describe_stages(
        self, stages: Mapping[str, str], profiles: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield why stages read padding as pixels, shrink inputs, or ship their float model.

        Args:
            stages: By stage the name of its variant.
            profiles: By stage the profile that the variant was asked for.
        """
        for stage, profile in profiles.items():
            if (stage, profile) not in self._of_fixed:
                continue
            if because := self._fixed[stage].because:
                yield f"With fixed shapes, stage '{stage}' reads padding as pixels: {because}."
            yield from self._floats.largest.describe(stage)
        for (stage, _), prepared in self._built.items():
            if prepared.float_because and stages.get(stage) == prepared.name:
                yield f"Stage '{stage}', {prepared.name}: {prepared.float_because}"

    def _build(self, stage: str, profile: str) -> PreparedVariant:
        graph = next(one for one in self._source.stages if one.name == stage)
        settings = resolve_profile(profile, {})
        name = settings.name
        folder = self._work / f"{stage}.{name}"
        folder.mkdir(parents=True)
        is_fixed = settings.limits.static_shapes
        if is_fixed:
            self._floats.check_fixed(graph, name)
        fixed = self._fix(graph) if graph.shapes and is_fixed else None
        if fixed:
            self._of_fixed.add((stage, profile))
        request = BuildRequest(
            model=fixed.path if fixed else graph.path,
            output=folder / f"{stage}-{self._request.version}",
            name=stage,
            version=self._request.version,
            release=self._request.release,
            profiles=(str(self._share_budget(profile, name, folder)),),
            key=self._request.key,
            calibration=str(self._record(graph, fixed)),
            shapes=fixed.shapes if fixed else {},
            outputs=self._ignore_caches(stage),
            prefer=self._request.prefer,
            budget_s=self._share_time(),
            trust_config=self._request.trust_config,
            leave_out_pictures=True,
            allow_degraded=True,
        )
        told = for_profile(self._progress, f"{stage}, {name}")
        try:
            return _prepare(request, folder / "work", told)
        except BuildError as error:
            error.problem = f"stage '{stage}', profile '{name}': {error.problem}"
            other = f"another profile for '{stage}': [[variant]] in a {PIPELINE_FILE}"
            error.remedy = f"{error.remedy}; or {other}" if error.remedy else other
            raise

    def _ignore_caches(self, stage: str) -> dict[str, OutputDeclaration]:
        """Declare the caches that begin a text as ignored: the text shows what they lose.

        All texts begin with the same tokens, so these caches hardly vary between samples, and the
        share of their variance that a variant keeps says nothing.
        """
        wiring = next(one for one in self._source.wiring.stages if one.name == stage)
        if wiring.loop is None or wiring.loop.cache is None:
            return {}
        caches = wiring.loop.cache.first.values()
        return {name: OutputDeclaration(task="ignored") for name in caches}

    def _share_time(self) -> float | None:
        """Return the seconds of a stage: an equal part, and one more part for the gate."""
        left_s = self._deadline.left_s
        return None if left_s is None else left_s / (max(self._count - len(self._built), 1) + 1)

    def _share_budget(self, profile: str, name: str, folder: Path) -> Path:
        """Write the profile with the stage's part of the pipeline's budget."""
        keep = 1.0 - (1.0 - budget_of(self._source, profile)) / len(self._source.stages)
        parent = str(Path(profile).resolve()) if profile.endswith(".toml") else profile
        path = folder / f"{name}.toml"
        path.write_text(
            f'[profile]\nname = "{name}"\nextends = "{parent}"\n'
            f"[gates.accuracy.any]\nkeep = {keep!r}\n"
        )
        return path

    def _fix(self, graph: StageSource) -> FixedStage:
        """Return a stage with fixed shapes; profiles share it."""
        if graph.name not in self._fixed:
            folder = self._work / f"{graph.name}.source-fixed"
            folder.mkdir(parents=True)
            fixed = fix_stage(graph, self._source.wiring, folder)
            if fixed.mask:
                files = sorted(self._record(graph, fixed).iterdir())
                if because := find_difference(graph, fixed, files):
                    fixed = FixedStage(path=graph.path, shapes=graph.shapes, because=because)
            self._fixed[graph.name] = fixed
        return self._fixed[graph.name]

    def _record(self, graph: StageSource, fixed: FixedStage | None) -> Path:
        """Return the folder of what a stage is given; the pipeline runs once for all free shapes.

        Raises:
            BuildError: The stage is never run.
        """
        kind = "free" if fixed is None else "masked" if fixed.mask else "fixed"
        if (graph.name, kind) not in self._recorded:
            stages = [one.name for one in self._source.stages] if fixed is None else [graph.name]
            folders = {name: self._work / f"{name}.samples-{kind}" for name in stages}
            self._floats.record(folders, self._samples.calibration, fixed)
            self._recorded |= {(name, kind): folder for name, folder in folders.items()}
        folder = self._recorded[graph.name, kind]
        if not any(folder.iterdir()):
            raise BuildError(
                f"stage '{graph.name}' is never run with the {len(self._samples.calibration)} "
                "samples for calibration",
                found_in=str(self._source.path),
                remedy="give samples that reach the stage",
            )
        return folder


def _prepare(request: BuildRequest, work: Path, progress: Progress) -> PreparedVariant:
    """Run the steps of a build of a single model up to its variant."""
    work.mkdir()
    with Boards(progress) as boards, ProviderProcess() as process:
        checked = check_request(request, boards)
        checked = replace(checked, combinations=checked.combinations[:1])
        source = open_model(request, checked.profiles, work, progress)
        samples = open_build_samples(request, source, checked.profiles, work, progress)
        opened = OpenedBuild(request=request, source=source, samples=samples)
        return prepare_variants(opened, checked, work, process, progress).variants[0]
