"""Step of a decoder: its token, and the next inputs."""

import numpy as np
import numpy.typing as npt

from edgepack.packager.tensors.decoders import Decoder, Rule
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Floats, Outputs, Tensor

Places = npt.NDArray[np.intp]


def next_scores(decoder: Decoder, outputs: Outputs) -> Floats:
    """Return logarithms of the next token's probabilities, float64 (vocabulary,); NaN is not a
    score.
    """
    values = outputs[decoder.scores]
    last = values.reshape(-1, values.shape[-1])[-1].astype(np.float64)
    scores = np.nan_to_num(last, nan=-1e9, posinf=1e9, neginf=-1e9)
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def steps_left(decoder: Decoder, feeds: Feeds) -> int | None:
    """Return steps from a sample on, with its own, that there are positions for; None without a
    limit.
    """
    left = [rows - int(feeds[name].max()) for name, rows in decoder.rows.items()]
    return min(left, default=None)


def next_feeds(decoder: Decoder, feeds: Feeds, outputs: Outputs, token: int) -> Feeds:
    """Return the inputs after a chosen token: the caches in the outputs, and that token.

    Without a cache the text is read again, with that token at the end.
    """
    tokens = feeds[decoder.tokens]
    after = dict(feeds)
    said = np.full((*tokens.shape[:-1], 1), token, tokens.dtype)
    after[decoder.tokens] = said if decoder.caches else np.concatenate([tokens, said], axis=-1)
    kept = _kept_places(decoder, feeds, outputs)
    for cache in decoder.caches:
        value = outputs[cache.output]
        if kept is not None and cache.places is not None:
            value = value.take(kept, cache.axis)
        after[cache.input] = value
    for name, rule in decoder.rules.items():
        value = _advanced(rule, feeds[name], tokens.shape[-1], kept)
        if not decoder.caches and rule in ("positions", "as_long"):
            value = np.concatenate([feeds[name], value], axis=-1)
        after[name] = value
    return after


def without_padding_behind(decoder: Decoder, feeds: Feeds) -> Feeds:
    """Return a sample without the tokens that its mask hides at the end: the next token follows the
    text.
    """
    masks = [feeds[name] for name, rule in decoder.rules.items() if rule == "mask"]
    row = masks[0].reshape(-1) if masks and masks[0].ndim == 2 else np.ones(1)
    hidden = row.size - 1 - int(np.flatnonzero(row).max(initial=row.size - 1 if row[-1] else -1))
    step = feeds[decoder.tokens].shape[-1]
    if not 0 < hidden < step:
        return feeds
    return feeds | {
        name: feeds[name][..., : feeds[name].shape[-1] - hidden]
        for name in (decoder.tokens, *decoder.rules)
        if name == decoder.tokens or decoder.rules[name] in ("mask", "positions", "as_long")
    }


def _kept_places(decoder: Decoder, feeds: Feeds, outputs: Outputs) -> Places | None:
    """Return the kept places of a cache of fixed size; None for a growing cache."""
    fixed = [cache for cache in decoder.caches if cache.places is not None]
    if not fixed or fixed[0].places is None:
        return None
    count = outputs[fixed[0].output].shape[fixed[0].axis]
    hidden = np.zeros(count, np.bool_)
    for name, rule in decoder.rules.items():
        if rule == "mask":
            row = feeds[name].reshape(-1, feeds[name].shape[-1])[-1]
            hidden = np.asarray(row != row[-1])[:count]
    leave_first = np.argsort(~hidden, kind="stable")
    return np.sort(leave_first[count - fixed[0].places :])


def _advanced(rule: Rule, value: Tensor, step: int, kept: Places | None) -> Tensor:
    match rule:
        case "mask":
            row = value[..., -1:, :] if value.ndim > 2 else value
            before = row if kept is None else row.take(kept, -1)
            return np.concatenate([before, row[..., -1:]], axis=-1)
        case "positions":
            return np.asarray(value[..., -1:] + np.asarray(1), value.dtype)
        case "past_length" | "total_length":
            return np.asarray(value + np.asarray(step if rule == "past_length" else 1), value.dtype)
        case "cache_flag":
            return np.ones_like(value)
        case "as_long":
            return value[..., -1:]
        case "same":
            return value
