"""Replacement of a decoder's calibration samples by later steps of the float model's texts.

Prompts have empty caches, and first steps begin with a single token. Ranges that were taken from
these alone would not cover a cache that holds a text. Tokens after the end of a text are never fed,
so that no sample comes from there.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.token_steps import (
    next_feeds,
    next_scores,
    steps_left,
    without_padding_behind,
)
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.exchange import read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit, digest_of

_STEPS = 32
"""Samples are taken from so many steps in turn."""

_FEWEST_AGAIN = 8
"""So often a token stands at the end of a chain that ends a text, as for the verdict on tokens."""

_FEWEST_ENDED = 2
"""Texts that end so: one alone may be a model that is stuck."""


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
    if decoder is None or not _begin_alike(samples):
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
    end = _find_end(texts)
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
