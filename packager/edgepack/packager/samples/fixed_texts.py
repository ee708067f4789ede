"""Texts as samples of a decoder with fixed shapes.

A text becomes one inference. Of every other text the first half lies in the cache, as the float
model computed it, and the second half, which the answer ends, is fed. The others are fed whole, as
far as the graph takes them. So ranges cover a cache that holds a text, and the beginnings of texts.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from edgepack.agent.runtime.fixed_decoder import FixedSizes, fixed_feeds
from edgepack.bundle.generation import FixedNames as Names
from edgepack.errors import BuildError
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.prompts import GIVE_PROMPTS
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.exchange import read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit


def fix_texts(
    split: SampleSplit, fixed: SourceModel, sizes: FixedSizes, run: Run, folder: Path
) -> SampleSplit:
    """Return the samples of the decoder with fixed shapes, in the same order.

    Args:
        split: Texts with answers, for the decoder with open shapes.
        fixed: The decoder with fixed shapes.
        sizes: Its sizes.
        run: Runs the decoder with open shapes.
        folder: Folder for keys and values; created.

    Raises:
        BuildError: The samples are not texts with answers.
    """
    if not split.calibration.are_texts:
        raise BuildError(
            "graphs with fixed shapes are made by texts with answers, and the samples are arrays",
            found_in=split.calibration.source,
            remedy=GIVE_PROMPTS,
        )
    folder.mkdir(parents=True)
    caches = {spec.name: spec for spec in fixed.inputs if spec.name.startswith(Names.past)}

    def of(name: str, samples: Samples) -> Samples:
        stored: dict[int, tuple[list[int], int]] = {}

        def begin(index: int) -> tuple[list[int], int]:
            """Compute a text's cache once; return its tokens, and those that lie in the cache."""
            if index not in stored:
                feeds = samples.read(index)
                tokens = feeds[Names.tokens].reshape(-1).tolist()
                last = max(len(tokens) - len(tokens) // 2, samples.answer_tokens(index) + 1)
                if index % 2:  # Beginnings see few tokens, and attention does not average.
                    last = len(tokens)
                before = max(len(tokens) - min(last, sizes.steps), 0)
                said = run({key: _first(key, value, before) for key, value in feeds.items()})
                kept = {key: said[_present(key)] for key in caches} if before else {}
                write_tensors(folder / f"{name}-{index}.npz", [kept])
                stored[index] = tokens, before
            return stored[index]

        def read(index: int) -> Feeds:
            tokens, before = begin(index)
            feeds: Feeds = dict(fixed_feeds(tokens[before:], before, sizes))
            (kept,) = read_tensors(folder / f"{name}-{index}.npz", 1)
            for key, spec in caches.items():
                feeds[key] = np.zeros(_sizes(spec.shape), spec.dtype)
                if before:
                    feeds[key][:, :, :before] = kept[key]
            return feeds

        def answers(index: int) -> int:
            tokens, before = begin(index)
            return min(samples.answer_tokens(index), len(tokens) - before - 1)

        return replace(samples, read=read, answers=answers, mask=None)

    return replace(
        split,
        calibration=of("calibration", split.calibration),
        search=of("search", split.search),
        held_out=of("held-out", split.held_out),
    )


def _first(name: str, value: Any, count: int) -> Any:
    """Return an input of a text's first tokens; at least one, which the caller then ignores."""
    return value if name.startswith(Names.past) else value[:, : max(count, 1)]


def _present(past: str) -> str:
    return Names.present + past.removeprefix(Names.past)


def _sizes(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int))
