"""A pipeline, loaded stage by stage and run as a single model (`opening`)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from edgepack.agent.runtime.placement import LeftNode
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Session, SessionTensor, Tensor, check_feeds
from edgepack.bundle.manifest import Placement, Variant
from edgepack.errors import DeviceError
from edgepack.stages.running import (
    Record,
    run_wiring,
    shapes_of_inputs,
    specs_of,
    tensors_of_graph,
    wired_inputs,
)
from edgepack.stages.wiring import Wiring


class PipelineSession(Session):
    """The graphs of a pipeline with its host steps, as a session: picture in, lines out.

    Args:
        wiring: The wiring.
        stages: By stage its opened graph.
        provider: The provider that the pipeline counts as.

    Raises:
        DeviceError: A graph lacks a tensor, or an accelerator took no node of its graph.
    """

    def __init__(self, wiring: Wiring, stages: Mapping[str, Session], provider: str) -> None:
        for stage in wiring.stages:
            session = stages[stage.name]
            fed, made = tensors_of_graph(wiring, stage)
            fed |= wired_inputs(stage, {one.name for one in session.inputs}).keys()
            _check_tensors(stage.name, fed, session.inputs, "input", are_all=True)
            _check_tensors(stage.name, made, session.outputs, "output", are_all=False)
            found = session.placement
            if found.verified and not found.taken and session.provider != CPU_PROVIDER:
                raise DeviceError(
                    f"{session.provider} took none of {found.total} nodes of stage '{stage.name}'",
                    remedy="build the stage for the CPU",
                )
        self._wiring = wiring
        self._stages: dict[str, Session] | None = dict(stages)
        self._shapes = shapes_of_inputs(
            wiring,
            {name: {one.name: one.shape for one in it.inputs} for name, it in stages.items()},
        )
        outputs = {
            name: {one.name: (one.dtype, one.shape) for one in it.outputs}
            for name, it in stages.items()
        }
        specs = specs_of(wiring, outputs)
        self.provider = provider
        self.inputs = tuple(
            SessionTensor(name=one.name, dtype=one.dtype, shape=one.shape) for one in wiring.inputs
        )
        self.outputs = tuple(
            SessionTensor(name=name, dtype=specs[name][0], shape=specs[name][1])
            for name in wiring.outputs
        )
        self.placement = _add_placements(provider, [one.placement for one in stages.values()])
        self.left_nodes: tuple[LeftNode, ...] = tuple(
            node for one in stages.values() for node in one.left_nodes
        )

    def run(self, feeds: Mapping[str, Tensor], record: Record | None = None) -> dict[str, Tensor]:
        """Run all stages; see `Session.run`.

        Args:
            feeds: A tensor for every input of the pipeline.
            record: Called with what each graph is given.

        Raises:
            ValueError: A tensor does not fit, or has no values.
            DeviceError: A stage failed.
        """
        stages = self._stages
        if stages is None:
            raise ValueError("the session is closed")
        check_feeds(self.inputs, feeds)
        _check_filled(feeds)
        graphs = {name: one.run for name, one in stages.items()}
        try:
            return run_wiring(self._wiring, graphs, self._shapes, feeds, record)
        except ValueError as error:
            raise DeviceError(f"a stage of the pipeline failed: {error}") from error

    def open_binding(self) -> tuple[Any, Callable[[], None]]:
        """Refuse: the tensors between the stages are made anew for each inference.

        Raises:
            DeviceError: Always.
        """
        raise DeviceError(
            "arrays cannot be bound to a pipeline of several graphs", remedy="use `run`"
        )

    def close(self) -> None:
        """Free all stages."""
        stages, self._stages = self._stages, None
        for one in (stages or {}).values():
            one.close()


def open_stages(variant: Variant, open_graph: Callable[[Variant], Session]) -> PipelineSession:
    """Open all stages of a pipeline's variant.

    Args:
        variant: The variant, with its parts and its wiring.
        open_graph: Opens a part.

    Raises:
        DeviceError: See `open_session` and `PipelineSession`.
    """
    stages: dict[str, Session] = {}
    for part in variant.parts:
        try:
            stages[part.component] = open_graph(part)
        except DeviceError as error:
            error.problem = f"stage '{part.component}': {error.problem}"
            raise
    if variant.wiring is None:
        raise ValueError(f"variant '{variant.name}' has stages, and no wiring")
    return PipelineSession(variant.wiring, stages, variant.provider)


def _check_filled(feeds: Mapping[str, Tensor]) -> None:
    """Check that each input has values: a graph makes up a result for a text without tokens.

    Raises:
        ValueError: An input has no values.
    """
    for name, value in feeds.items():
        if not value.size:
            raise ValueError(
                f"input '{name}' has shape {list(value.shape)}, which has no values: give a text "
                "of one token, or a picture of one pixel, at least"
            )


def _check_tensors(
    stage: str,
    wired: Collection[str],
    tensors: tuple[SessionTensor, ...],
    kind: str,
    *,
    are_all: bool,
) -> None:
    names = {one.name for one in tensors}
    odd = set(wired) - names or (names - set(wired) if are_all else set())
    if odd:
        raise DeviceError(
            f"the wiring of stage '{stage}' does not fit its graph: {kind} '{min(odd)}'; the graph "
            f"has {', '.join(sorted(names))}"
        )


def _add_placements(provider: str, each: list[Placement]) -> Placement:
    left: dict[str, int] = {}
    for one in each:
        for operator, count in one.left.items():
            left[operator] = left.get(operator, 0) + count
    return Placement(
        provider=provider,
        taken=sum(one.taken for one in each),
        total=sum(one.total for one in each),
        left=dict(sorted(left.items())),
        verified=all(one.verified for one in each),
    )
