"""A decoder with fixed shapes, for NPUs: a graph for many tokens, a graph for one, and a cache.

The cache has a place for each token of the context, and stays with the caller: an inference reads
the cache and returns the keys and values of its own tokens, which are copied to their places. A
bias of the scores hides places without a token. A prompt's last tokens may be fewer than the graph
takes: the first of them is repeated before them, and no other token sees the repetitions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.runtime.placement import LeftNode
from edgepack.agent.runtime.sessions import Session, SessionTensor, Tensor, check_feeds
from edgepack.bundle.generation import HIDDEN_BIAS
from edgepack.bundle.generation import FixedNames as Names
from edgepack.bundle.manifest import FixedDecoder, Placement
from edgepack.errors import BundleError

MASK = "attention_mask"
_BATCH, _NEW, _PAST, _ALL = "batch_size", "sequence_length", "past_length", "total_length"

Integers = npt.NDArray[np.int32]


class FixedSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the graphs.

    Attributes:
        steps: Tokens of an inference.
        context: Places of the cache.
        window: See `FixedDecoder`.
    """

    steps: int
    context: int
    window: int = 0


def fixed_feeds(tokens: Sequence[int], length: int, sizes: FixedSizes) -> dict[str, Tensor]:
    """Return the inputs of an inference, except the cache.

    Args:
        tokens: At least one, at most `sizes.steps`.
        length: Tokens in the cache.
        sizes: Sizes of the graph.
    """
    before = sizes.steps - len(tokens)
    ids = np.array([[tokens[0]] * before + list(tokens)], np.int32)
    places = np.maximum(np.arange(sizes.steps, dtype=np.int32) - before, 0) + np.int32(length)
    cached = np.arange(sizes.context, dtype=np.int32)
    nowhere = np.int32(np.iinfo(np.int32).max)
    keys = np.concatenate(
        [np.where(cached < length, cached, nowhere), np.full(before, nowhere), places[before:]]
    )
    feeds: dict[str, Tensor] = {Names.tokens: ids, Names.positions: places[None]}
    for name, window in ((Names.bias, 0), (Names.local_bias, sizes.window)):
        if name == Names.bias or window:
            is_seen = keys <= places[:, None]
            if window:
                is_seen &= keys > places[:, None] - window
            feeds[name] = np.where(is_seen, 0, HIDDEN_BIAS).astype(np.float32)[None, None]
    return feeds


class FixedCache:
    """The cache of a text, and its inferences; for one thread at a time.

    Args:
        session: The decoder.

    Attributes:
        arrays: Keys and values by the names of the inputs.
        length: Tokens in the cache.
    """

    def __init__(self, session: "FixedDecoderSession") -> None:
        self._session = session
        self.length = 0
        self.arrays: dict[str, npt.NDArray[Any]] = {
            one.name: np.zeros(one.shape, one.dtype)  # type: ignore[arg-type]
            for one in session.graphs[1].inputs
            if one.name.startswith(Names.past)
        }

    def feed(self, tokens: Sequence[int]) -> Tensor:
        """Append tokens; return the logits after each, (tokens, vocabulary).

        Args:
            tokens: As many as the larger graph takes at most.

        Raises:
            ValueError: The tokens do not fit into the context.
            DeviceError: The provider failed.
        """
        number, sizes = len(tokens), self._session.sizes
        if self.length + number > sizes.context:
            raise ValueError(f"{number} tokens do not fit behind {self.length}")
        steps = 1 if number == 1 else sizes.steps
        sizes = msgspec.structs.replace(sizes, steps=steps)
        feeds = fixed_feeds(tokens, self.length, sizes)
        outputs = self._session.graphs[steps].run({**feeds, **self.arrays})
        for name, array in self.arrays.items():
            own = outputs[_present_of(name)]
            array[:, :, self.length : self.length + number] = own[:, :, steps - number :]
        self.length += number
        return outputs[Names.logits][0, steps - number :]


class FixedDecoderSession(Session):
    """A decoder with fixed shapes that takes texts of any length, like other decoders.

    Args:
        prefill: The graph for many tokens.
        step: The graph for one token.
        facts: Facts of the variant.

    Attributes:
        graphs: Both graphs, by the number of their tokens.
        sizes: Sizes of the larger graph.

    Raises:
        BundleError: The graphs do not fit each other, or are no such decoder.
    """

    def __init__(self, prefill: Session, step: Session, facts: FixedDecoder) -> None:
        first, second = (_read_sizes(graph, facts) for graph in (prefill, step))
        if second.steps != 1 or first.steps < 2 or first.context != second.context:
            raise BundleError(
                f"the graphs of the decoder take {first.steps} and {second.steps} tokens, with a "
                f"context of {first.context} and {second.context}",
                found_in=facts.step_file,
                remedy="build the bundle again",
            )
        self.sizes, self.graphs = first, {first.steps: prefill, 1: step}
        self.provider = prefill.provider
        self.inputs = (
            SessionTensor(name=Names.tokens, dtype="int64", shape=(_BATCH, _NEW)),
            SessionTensor(name=MASK, dtype="int64", shape=(_BATCH, _ALL)),
            *(_open(one, Names.past, _PAST) for one in prefill.inputs if _is_cache(one)),
        )
        vocabulary = next(one for one in prefill.outputs if one.name == Names.logits)
        self.outputs = (
            msgspec.structs.replace(vocabulary, shape=(_BATCH, _NEW, vocabulary.shape[-1])),
            *(_open(one, Names.present, _ALL) for one in prefill.outputs if _is_cache(one)),
        )
        both = prefill.placement, step.placement
        self.placement = Placement(
            provider=self.provider,
            taken=sum(one.taken for one in both),
            total=sum(one.total for one in both),
            verified=all(one.verified for one in both),
        )
        self.left_nodes: tuple[LeftNode, ...] = (*prefill.left_nodes, *step.left_nodes)

    def count_bytes(self) -> int:
        """Return the memory of a text: its cache, and the logits and biases of an inference."""
        inputs, outputs = (
            self.graphs[self.sizes.steps].inputs,
            self.graphs[self.sizes.steps].outputs,
        )
        return sum(
            math.prod(map(int, one.shape)) * np.dtype(one.dtype).itemsize
            for one in (*inputs, *outputs)
        )

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a text, in parts, behind the cache that is given; see `Session.run`."""
        check_feeds(self.inputs, feeds)
        tokens = feeds[Names.tokens]
        cache = FixedCache(self)
        for name, array in cache.arrays.items():
            past = feeds[name]
            if tokens.shape[0] != 1 or past.shape[2] + tokens.shape[1] > self.sizes.context:
                raise ValueError(
                    f"{tokens.shape[0]} texts of {past.shape[2]} + {tokens.shape[1]} tokens do not "
                    f"fit: the decoder takes one of {self.sizes.context}"
                )
            array[:, :, : past.shape[2]] = past
            cache.length = past.shape[2]
        row = tokens[0].tolist()
        parts = range(0, len(row), self.sizes.steps)
        logits = [cache.feed(row[start : start + self.sizes.steps]) for start in parts]
        found = {
            _present_of(name): array[:, :, : cache.length].copy()
            for name, array in cache.arrays.items()
        }
        return {Names.logits: np.concatenate(logits)[None], **found}

    def bind(
        self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> Callable[[], None]:
        """Return an inference that reads and writes arrays of the caller; see `Session.bind`."""

        def run() -> None:
            for name, array in self.run(inputs).items():
                if name in outputs:
                    np.copyto(outputs[name], array)

        return run

    def open_binding(self) -> tuple[Any, Callable[[], None]]:
        """Raise a `ValueError`: the graphs have other inputs."""
        raise ValueError("a decoder with fixed shapes is run by its cache")

    def close(self) -> None:
        """Free both graphs once their running inferences are done."""
        for graph in self.graphs.values():
            graph.close()


def _present_of(past: str) -> str:
    return Names.present + past.removeprefix(Names.past)


def _is_cache(tensor: SessionTensor) -> bool:
    return tensor.name.startswith((Names.past, Names.present))


def _open(tensor: SessionTensor, prefix: str, length: str) -> SessionTensor:
    """Return a tensor of the cache with an open length."""
    heads, size = tensor.shape[1], tensor.shape[3]
    return msgspec.structs.replace(tensor, shape=(_BATCH, heads, length, size))


def _read_sizes(graph: Session, facts: FixedDecoder) -> FixedSizes:
    """Return the sizes of a graph.

    Raises:
        BundleError: The graph has other inputs or outputs than a decoder with fixed shapes.
    """
    inputs = {one.name: one for one in graph.inputs}
    outputs = {one.name: one for one in graph.outputs}
    caches = [one for one in graph.inputs if _is_cache(one)]
    plain = {Names.tokens, Names.positions, Names.bias, *([Names.local_bias] * bool(facts.window))}
    named = plain | {one.name for one in caches}
    said = {Names.logits} | {_present_of(one.name) for one in caches}
    shapes = [one.shape for one in (*graph.inputs, *graph.outputs)]
    is_fixed = all(isinstance(size, int) for shape in shapes for size in shape)
    if inputs.keys() == named and outputs.keys() == said and caches and is_fixed:
        steps, context = int(inputs[Names.tokens].shape[-1]), int(caches[0].shape[2])
        expected = {
            Names.tokens: (1, steps),
            Names.positions: (1, steps),
            **dict.fromkeys((Names.bias, Names.local_bias), (1, 1, steps, context + steps)),
        }
        own = [(one.shape[0], one.shape[2]) for one in caches]
        new = [(outputs[_present_of(one.name)].shape) for one in caches]
        if (
            all(inputs[name].shape == expected[name] for name in plain)
            and set(own) == {(1, context)}
            and new == [(1, one.shape[1], steps, one.shape[3]) for one in caches]
            and outputs[Names.logits].shape[:2] == (1, steps)
        ):
            return FixedSizes(steps=steps, context=context, window=facts.window)
    raise BundleError(
        f"the graph with {len(inputs)} inputs and {len(outputs)} outputs is not a decoder with "
        "fixed shapes",
        found_in=facts.step_file,
        remedy="build the bundle again",
    )
