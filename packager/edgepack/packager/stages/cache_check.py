"""Check that a decoder with a cache continues the texts of the decoder without one."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.agent.runtime.pipelines import PipelineSession
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Session
from edgepack.errors import BuildError
from edgepack.packager.stages.pipeline_file import PipelineSource
from edgepack.stages.wiring import StageWiring
from edgepack.tasks.arrays import Tensor

_TOKENS = 4
"""Tokens of a text that are compared."""
_MOST_LOST = 3e-3
"""Share of the logits' variance. docs/benchmarks/evidence has the shares of sound and of wrong
decoders.
"""


def check_caches(
    source: PipelineSource, graphs: Mapping[str, Session], sample: Mapping[str, Tensor]
) -> None:
    """Compare the logits of both decoders for the first tokens of a text.

    Args:
        source: The pipeline.
        graphs: By stage its float graph.
        sample: Inputs of the pipeline.

    Raises:
        BuildError: The logits differ: the two graphs are of different models, or the cache is
            wired wrongly.
        DeviceError, ValueError: The pipeline does not run on the sample.
    """
    for stage in source.wiring.stages:
        then = source.wiring.continuing(stage)
        if then is not None and _takes_texts(stage, graphs[stage.name]):
            _compare(source, graphs, stage, then, sample)


def _takes_texts(stage: StageWiring, graph: Session) -> bool:
    """Return True if a decoder takes any number of tokens, not only the start of a text."""
    shapes = {one.name: one.shape for one in graph.inputs}
    return stage.loop is not None and isinstance(shapes[stage.loop.tokens][-1], str)


def _compare(
    source: PipelineSource,
    graphs: Mapping[str, Session],
    stage: StageWiring,
    then: StageWiring,
    sample: Mapping[str, Tensor],
) -> None:
    loop = stage.loop
    if loop is None:
        return
    (logits,) = stage.outputs
    greedy = replace(stage, loop=replace(loop, beams=1, most=max(_TOKENS, loop.written + 1)))
    wiring = replace(
        source.wiring,
        stages=tuple(greedy if one is stage else one for one in source.wiring.stages),
    )
    given: list[tuple[str, dict[str, Tensor]]] = []

    def note(name: str, feeds: Mapping[str, Tensor]) -> None:
        if name in (stage.name, then.name):
            given.append((name, dict(feeds)))

    PipelineSession(wiring, graphs, CPU_PROVIDER).run(sample, note)
    first: dict[str, Tensor] = {}
    for name, feeds in given:
        if name == stage.name:
            first = feeds
            continue
        text = np.concatenate([first[loop.tokens], feeds[loop.tokens]], axis=1)
        first = {**first, loop.tokens: text}
        whole, continued = (
            graph.run(fed)[logits][0, -1].astype(np.float64)
            for graph, fed in ((graphs[stage.name], first), (graphs[then.name], feeds))
        )
        lost = float(np.var(whole - continued) / max(float(np.var(whole)), 1e-30))
        if not lost <= _MOST_LOST:
            raise BuildError(
                f"stage '{then.name}' does not continue the texts of stage '{stage.name}': after "
                f"{text.shape[1]} tokens its logits keep {max(1 - lost, 0):.4f} of the variance "
                f"of those that '{stage.name}' gives for all tokens, {1 - _MOST_LOST:g} is needed",
                found_in=_name_files(source, (stage.name, then.name)),
                remedy="export both graphs at once from one model, and wire each value of the "
                "cache to the input of its layer",
            )


def _name_files(source: PipelineSource, names: Sequence[str]) -> str:
    given = (str(one.given) for one in source.stages if one.name in names)
    return ", ".join(dict.fromkeys(given))
