"""Several inferences as one."""

from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.agent.runtime.sessions import Tensor, check_feeds, name_single
from edgepack.agent.serving.opened import OpenedModel


def run_batch(
    opened: OpenedModel, given: Sequence[Mapping[str, Tensor] | Tensor]
) -> list[dict[str, Tensor]]:
    """Run inferences as one where the model allows it; see `Model.run_batch`."""
    names = [one.name for one in opened.session.inputs]
    samples = [one if isinstance(one, Mapping) else name_single(names, one) for one in given]
    for feeds in samples:
        check_feeds(opened.session.inputs, feeds)
    sizes = _batch_sizes(opened, samples)
    if len(sizes) < 2:
        return [opened.run(feeds) for feeds in samples]
    joined = {
        one.name: np.concatenate([feeds[one.name] for feeds in samples])
        for one in opened.session.inputs
    }
    outputs = opened.run(joined)
    total = sum(sizes)
    if any(value.ndim == 0 or value.shape[0] != total for value in outputs.values()):
        return [opened.run(feeds) for feeds in samples]
    ends = np.cumsum(sizes)
    return [
        {name: value[end - size : end] for name, value in outputs.items()}
        for size, end in zip(sizes, ends.tolist(), strict=True)
    ]


def _batch_sizes(opened: OpenedModel, samples: Sequence[Mapping[str, Tensor]]) -> list[int]:
    """Return the batch of each sample; empty where they cannot be joined."""
    tensors = (*opened.session.inputs, *opened.session.outputs)
    if not all(one.shape and isinstance(one.shape[0], str) for one in tensors):
        return []
    sizes: list[int] = []
    for feeds in samples:
        first = {value.shape[0] for value in feeds.values()}
        others = [value.shape[1:] for value in feeds.values()]
        if len(first) != 1 or others != [value.shape[1:] for value in samples[0].values()]:
            return []
        sizes += first
    return sizes
