"""Decoders without a cache: each step reads the whole text again.

Such decoders look like models that fill gaps, which also score words after a text of any length;
but a gap model's scores at a place depend on the following text.
"""

from collections.abc import Mapping

import numpy as np

from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.token_steps import next_feeds, next_scores
from edgepack.packager.source.lookups import KEEPS_SOME_VALUES, find_lookups
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Feeds

_UNMOVED = 1e-3
"""Greatest change of a score, as a share of their size, that sums in another order leave."""


def sizes_of_tables(source: SourceModel) -> Mapping[str, int]:
    """Return the number of table rows that an input may index, by input."""
    found = find_lookups(source.model.graph, KEEPS_SOME_VALUES)
    return {name: table.rows for name, table in found.items()}


def find_rereading(source: SourceModel, tables: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Return inputs of tokens with outputs that score the next tokens, in texts of any length."""
    return tuple(
        (ids.name, told.name)
        for ids in source.inputs
        for told in source.outputs
        if ids.name in tables
        and len(ids.shape) == 2
        and isinstance(ids.shape[1], str)
        and len(told.shape) == 3
        and told.shape[1] in (ids.shape[1], "?")
        and told.dtype.startswith("float")
    )


def reads_forwards(decoder: Decoder, feeds: Feeds, run: Run) -> bool:
    """Return True if scores do not depend on later tokens, unlike scores of a model that fills
    gaps.
    """
    said = run(feeds)
    longer = run(next_feeds(decoder, feeds, said, int(next_scores(decoder, said).argmax())))
    scored = (outputs[decoder.scores].astype(np.float64) for outputs in (said, longer))
    before, after = next(scored), next(scored)[:, :-1]
    is_long = before.shape == after.shape and before.shape[1] > 1
    return is_long and bool(
        np.abs(before - after).max() <= _UNMOVED * np.sqrt(np.square(before).mean())
    )
