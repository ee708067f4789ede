"""The float pipeline on the build host: expected outputs, and what each graph is given."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgepack.agent.runtime.opening import open_model_file, without_spinning
from edgepack.agent.runtime.pipelines import PipelineSession
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Session
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.durable import write_file
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.stages.cache_check import check_caches
from edgepack.packager.stages.fixed_stages import CroppedSession, FixedStage
from edgepack.packager.stages.pipeline_file import PipelineSource, StageSource
from edgepack.packager.stages.stage_shapes import (
    LargestInputs,
    check_fixed,
    check_shapes,
    format_sizes,
    sizes_differ,
)
from edgepack.stages.running import Record, Spec, specs_of
from edgepack.stages.wiring import Resize, StageWiring, Wiring
from edgepack.tasks.arrays import Outputs, Tensor

_MOST_A_STAGE = 160
"""Inferences of a graph that its ranges and its search use; more tell little more."""
_MOST_STAGE_BYTES = 512 * 1024 * 1024
"""Bytes of these inferences' inputs, but for `_FEWEST`: caches of long sounds are large."""
_FEWEST = 4

_MOST_CHECKED = 3
"""Samples with which caches are checked: a text may end before its cache is used."""

_TEXT = "the tokens so far"
"""Name of what the host gives to a decoder that is repeated."""


class FloatPipeline:
    """The float graphs of a pipeline, on ONNX Runtime's CPU provider.

    Args:
        source: The pipeline.

    Raises:
        BuildError: A graph cannot run, or two nodes do not fit each other.
    """

    def __init__(self, source: PipelineSource) -> None:
        self._source = source
        self._graphs: dict[str, Session] = {}
        for stage in source.stages:
            try:
                self._graphs[stage.name] = open_model_file(stage.path, without_spinning())
            except DeviceError as error:
                raise BuildError(
                    f"stage '{stage.name}' does not run: {error.problem}",
                    found_in=str(stage.given),
                    remedy=error.remedy,
                ) from error
        _check_joints(source, self._graphs)
        self.session = PipelineSession(source.wiring, self._graphs, CPU_PROVIDER)
        self.largest = LargestInputs(source.stages)

    def check_fixed(self, stage: StageSource, profile: str) -> None:
        """Check that a profile with fixed shapes finds those of a stage; see `check_fixed`."""
        check_fixed(stage, self._graphs[stage.name].inputs, profile)

    def run(
        self, samples: Sequence[Mapping[str, Tensor]], what: str, progress: Progress
    ) -> tuple[Outputs, ...]:
        """Return the outputs for samples."""
        made = []
        for number, feeds in enumerate(samples):
            made.append(self._run(self.session, feeds, self.largest.note))
            progress(BuildStep(what=what, done=number + 1, total=len(samples)))
        return tuple(made)

    def record(
        self,
        folders: Mapping[str, Path],
        samples: Sequence[Mapping[str, Tensor]],
        fixed: FixedStage | None = None,
    ) -> None:
        """Write what graphs are given for samples, an `.npz` file each.

        Args:
            folders: By stage its folder, which is created; at most `_MOST_A_STAGE` files, evenly
                from all.
            samples: Inputs of the pipeline.
            fixed: A single stage with fixed shapes; None with free ones.
        """
        session = self.session
        if fixed is not None:
            (stage,) = folders
            shapes = next(one.shapes for one in self._source.stages if one.name == stage)
            cropped = CroppedSession(self._graphs[stage], shapes, fixed.mask)
            graphs = {**self._graphs, stage: cropped}
            session = PipelineSession(self._source.wiring, graphs, CPU_PROVIDER)
        for folder in folders.values():
            folder.mkdir(parents=True)
        thinned = {name: _Thinned(folder) for name, folder in folders.items()}

        def note(name: str, given: Mapping[str, Tensor]) -> None:
            if name in thinned:
                thinned[name].add(given)

        for feeds in samples:
            self._run(session, feeds, note)

    def check_caches(self, samples: Sequence[Mapping[str, Tensor]]) -> None:
        """Check that each decoder with a cache continues the texts of its decoder.

        Raises:
            BuildError: It does not, or the pipeline does not run on a sample.
        """
        for feeds in samples[:_MOST_CHECKED]:
            with self._as_build_error():
                check_caches(self._source, self._graphs, feeds)

    def _run(
        self,
        session: PipelineSession,
        feeds: Mapping[str, Tensor],
        record: Record | None = None,
    ) -> Outputs:
        with self._as_build_error():
            return session.run(feeds, record)

    @contextmanager
    def _as_build_error(self) -> Iterator[None]:
        try:
            yield
        except (DeviceError, ValueError) as error:
            raise BuildError(
                f"the float pipeline does not run on a sample: {error}",
                found_in=str(self._source.path),
            ) from error


class _Thinned:
    """Files of what a graph is given, evenly from all inferences, `_MOST_A_STAGE` at most, and
    `_MOST_STAGE_BYTES`.
    """

    def __init__(self, folder: Path) -> None:
        self.kept: list[int] = []
        self._folder = folder
        self._step = 1
        self._count = 0

    def add(self, given: Mapping[str, Tensor]) -> None:
        """Write an inference's tensors, or leave the inference out."""
        number, self._count = self._count, self._count + 1
        if number % self._step:
            return
        content = encode_arrays(given)
        write_file(self._path(number), content, lasting=False)
        self.kept.append(number)
        most = max(min(_MOST_A_STAGE, _MOST_STAGE_BYTES // len(content)), _FEWEST)
        while len(self.kept) > most:
            self._step *= 2
            for one in self.kept[1::2]:
                self._path(one).unlink()
            self.kept = self.kept[::2]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08}.npz"


def _check_joints(source: PipelineSource, graphs: Mapping[str, Session]) -> None:
    """Check dtypes and shapes of tensors between stages, and from steps to stages.

    Raises:
        BuildError: A graph takes another dtype, rank or size than is given.
    """
    outputs = {
        name: {one.name: (one.dtype, one.shape) for one in graph.outputs}
        for name, graph in graphs.items()
    }
    specs = specs_of(source.wiring, outputs)
    known: dict[str, Spec] = {
        one.output: ("float32", (1, 3, "", ""))
        for one in source.wiring.steps
        if isinstance(one, Resize)
    }
    known |= {**specs, _TEXT: ("int64", (1, ""))}
    for stage in source.wiring.stages:
        cached = _find_cached(source.wiring, stage, outputs)
        known |= cached
        for one in graphs[stage.name].inputs:
            tensor = stage.inputs.get(one.name, one.name if one.name in cached else _TEXT)
            if tensor not in known:
                continue
            dtype, shape = known[tensor]
            if dtype != one.dtype or sizes_differ(shape, one.shape):
                raise BuildError(
                    f"the tensor '{tensor}' is {dtype} {format_sizes(shape)}, and input "
                    f"'{one.name}' of stage '{stage.name}' takes {one.dtype} "
                    f"{format_sizes(one.shape)}",
                    found_in=str(source.path),
                    remedy="wire a tensor of the same type and shape, or export one of the graphs "
                    "again",
                )
        given = {name: known[one][1] for name, one in stage.inputs.items() if one in known}
        (graph,) = (one for one in source.stages if one.name == stage.name)
        check_shapes(source.path, graph, graphs[stage.name].inputs, given)


def _find_cached(
    wiring: Wiring, stage: StageWiring, outputs: Mapping[str, Mapping[str, Spec]]
) -> dict[str, Spec]:
    """Return what the loop of another stage first gives to a graph, by the graph's input."""
    return {
        name: outputs[other.name][own]
        for other in wiring.stages
        if wiring.continuing(other) is stage and other.loop and other.loop.cache
        for name, own in other.loop.cache.first.items()
        if own in outputs[other.name]
    }
