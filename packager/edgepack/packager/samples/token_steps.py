"""Steps of a decoder: token, next inputs, and calibration samples from later steps.

Prompts have empty caches, and first steps begin with a single token. Ranges that were taken from
these alone would not cover a cache that holds a text. Tokens after the end of a text are never fed,
so that no sample comes from there.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.decoders import Decoder, Rule
from edgepack.packager.tensors.exchange import read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit, digest_of
from edgepack.tasks.arrays import Floats, Outputs, Tensor

Places = npt.NDArray[np.intp]


_STEPS = 32
"""Samples are taken from so many steps in turn."""

_FEWEST_AGAIN = 8
"""So often a token stands at the end of a chain that ends a text, as for the verdict on tokens."""

_FEWEST_ENDED = 2
"""Texts that end so: one alone may be a model that is stuck."""


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
    return without_end(decoder, feeds, hidden) if 0 < hidden < step else feeds


def without_end(decoder: Decoder, feeds: Feeds, count: int) -> Feeds:
    """Return a sample without so many tokens at its end."""
    return feeds | {
        name: feeds[name][..., : feeds[name].shape[-1] - count]
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


def take_later_steps(
    split: SampleSplit, run: Run, folder: Path, progress: Progress
) -> tuple[SampleSplit, tuple[str, ...]]:
    """Return the samples for ranges, each from another step of a text, and a note.

    Args:
        split: Contains the beginnings of texts.
        run: The float model.
        folder: Folder of later steps: on disk, since a cache may be large.
        progress: Called for each sample.

    Returns:
        The samples with replaced samples for ranges, and their digest; unchanged for models other
        than decoders.
    """
    samples = split.calibration
    decoder = samples.decoder
    if decoder is None or samples.are_texts or not _begin_alike(samples):
        return split, ()
    folder.mkdir(parents=True, exist_ok=True)
    texts: list[list[int]] = []
    digests: list[bytes] = []
    for index, feeds in enumerate(samples):
        later, tokens = _go_on(decoder, feeds, run, index % _STEPS)
        texts.append(tokens)
        digests.append(digest_of(later))
        write_tensors(folder / f"{index}.npz", [later])
        progress(BuildStep(what="going on with texts", done=index + 1, total=samples.count))
    end = _find_end(texts) if decoder.end is None else decoder.end
    for index, tokens in enumerate(texts):
        if end in tokens:
            later, _ = _go_on(decoder, samples.read(index), run, tokens.index(end))
            digests[index] = digest_of(later)
            write_tensors(folder / f"{index}.npz", [later])
    digest = hashlib.sha256(b"".join((split.sha256.encode(), *digests)))

    def read(index: int) -> Feeds:
        return dict(read_tensors(folder / f"{index}.npz", 1)[0])

    note = (
        f"Samples for ranges are from the first {min(_STEPS, samples.count)} steps of what the "
        "float model says after them, so that ranges cover a cache that holds a text."
    )
    calibration = replace(samples, read=read)
    return replace(split, calibration=calibration, sha256=digest.hexdigest()), (note,)


def _find_end(texts: Sequence[Sequence[int]]) -> int | None:
    """Return the token that ends texts: the only token that some texts repeat at the end.

    Args:
        texts: The tokens that were said after each sample.
    """
    ends = Counter(
        tokens[-1]
        for tokens in texts
        if len(tokens) > _FEWEST_AGAIN and set(tokens[-_FEWEST_AGAIN:]) == {tokens[-1]}
    )
    token, count = ends.most_common(1)[0] if ends else (None, 0)
    return token if len(ends) == 1 and count >= _FEWEST_ENDED else None


def _go_on(decoder: Decoder, feeds: Feeds, run: Run, steps: int) -> tuple[Feeds, list[int]]:
    """Return the feeds after some steps, or as many as the model takes, and the tokens.

    A table of positions may be shorter than the text, and only an input of positions shows its
    length. So each later step is run before use; the first step that does not run ends the text,
    and the given samples are not blamed.

    Raises:
        BuildError: The given sample itself does not run.
    """
    feeds = without_padding_behind(decoder, feeds)
    left = steps_left(decoder, feeds)
    count = steps if left is None else min(steps, left - 1)
    said = run(feeds) if count > 0 else {}
    tokens: list[int] = []
    for _ in range(count):
        token = int(next_scores(decoder, said).argmax())
        later = next_feeds(decoder, feeds, said, token)
        try:
            said = run(later)
        except BuildError:
            break
        feeds = later
        tokens.append(token)
    return feeds, tokens


def _begin_alike(samples: Samples) -> bool:
    """Return True if the caches hold the same in all samples, as where texts begin."""
    decoder, first = samples.decoder, samples.read(0)
    names = [cache.input for cache in decoder.caches] if decoder else []
    return all(
        first[name].shape == feeds[name].shape and bool((first[name] == feeds[name]).all())
        for feeds in samples
        for name in names
    )
