"""Texts of a decoder: the likeliest token each time, or beam search."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.stages.loops import Loop
from edgepack.tasks.arrays import Tensor

RunGraph = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
_Scores = npt.NDArray[np.float64]
_Text = list[int]


class Decoder:
    """Graphs of a decoder during one text.

    Args:
        loop: Its loop.
        logits: Output with the scores of tokens, (texts, tokens, vocabulary).
        run: The graph that takes all tokens.
        feeds: Its further inputs, of one text.
        proceed: The graph with a cache; None without a cache.
        kept: Further inputs of the graph with a cache.
    """

    def __init__(
        self,
        loop: Loop,
        logits: str,
        run: RunGraph,
        feeds: Mapping[str, Tensor],
        proceed: RunGraph | None = None,
        kept: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._loop, self._logits, self._run, self._proceed = loop, logits, run, proceed
        self._feeds, self._kept = dict(feeds), dict(kept or {})
        self._state: dict[str, Tensor] = {}
        self._count = 1

    def choose(self) -> Loop:
        """Return the loop, with the likeliest of its choices in the start of the text."""
        loop = self._loop
        if loop.choices:
            first, *further = loop.start
            feeds = {**self._feeds, loop.tokens: _as_rows([[first]])}
            choices = sorted(loop.choices)
            chosen = choices[int(self._last(self._run(feeds))[0, choices].argmax())]
            self._loop = replace(loop, start=(first, chosen, *further), choices=())
        return self._loop

    def begin(self) -> _Scores:
        """Return scores (1, vocabulary) of the first token."""
        outputs = self._run({**self._feeds, self._loop.tokens: _as_rows([self._loop.start])})
        if (cache := self._loop.cache) is not None:
            self._state = {name: outputs[source] for name, source in cache.first.items()}
        return self._last(outputs)

    def proceed(self, texts: Sequence[Sequence[int]], parents: Sequence[int]) -> _Scores:
        """Return scores (texts, vocabulary) of the next token.

        Args:
            texts: All tokens of each text, of the same number.
            parents: The text of the step before that each text continues.
        """
        cache = self._loop.cache
        if cache is None or self._proceed is None:
            self._feeds = self._repeat(self._feeds, len(texts))
            self._count = len(texts)
            return self._last(self._run({**self._feeds, self._loop.tokens: _as_rows(texts)}))
        if len(texts) != self._count:
            self._kept = self._repeat(self._kept, len(texts))
            self._state = {name: value[list(parents)] for name, value in self._state.items()}
        elif list(parents) != list(range(len(texts))):
            self._state |= {name: self._state[name][list(parents)] for name in cache.next}
        self._count = len(texts)
        newest = _as_rows([text[-1:] for text in texts])
        outputs = self._proceed({**self._kept, **self._state, self._loop.tokens: newest})
        self._state |= {name: outputs[source] for name, source in cache.next.items()}
        return self._last(outputs)

    def _repeat(self, feeds: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        """Return inputs for several texts, which all have the same inputs."""
        if count == self._count:
            return dict(feeds)
        return {name: np.repeat(value[:1], count, axis=0) for name, value in feeds.items()}

    def _last(self, outputs: Mapping[str, Tensor]) -> _Scores:
        return np.array(outputs[self._logits][:, -1], np.float64)


def write_text(decoder: Decoder) -> _Text:
    """Return the tokens of a text, from the first of `start`."""
    loop = decoder.choose()
    return _search(loop, decoder) if loop.beams > 1 else _follow(loop, decoder)


def _follow(loop: Loop, decoder: Decoder) -> _Text:
    """Add the likeliest token each time."""
    text = list(loop.start)
    scores = decoder.begin()
    while True:
        text.append(int(_apply_rules(loop, scores[0], text).argmax()))
        if _is_over(loop, text):
            return text
        scores = decoder.proceed([text], [0])


def _search(loop: Loop, decoder: Decoder) -> _Text:
    """Follow several texts, and return the best that ended."""
    running: list[tuple[float, _Text]] = [(0.0, list(loop.start))]
    ended: list[tuple[float, _Text]] = []
    scores = decoder.begin()
    while True:
        following: list[tuple[float, _Text]] = []
        parents: list[int] = []
        length = _added(loop, running[0][1]) + 1
        for rank, (score, parent, token) in enumerate(_best(loop, scores, running)):
            text = [*running[parent][1], token]
            if not _is_over(loop, text):
                following.append((score, text))
                parents.append(parent)
            elif rank < loop.beams:
                ended.append((score / length**loop.length_penalty, text))
        following, parents = following[: loop.beams], parents[: loop.beams]
        ended = sorted(ended, key=lambda one: -one[0])[: loop.beams]
        if not following or _is_decided(loop, ended, following[0][0], length):
            return ended[0][1]
        running = following
        scores = decoder.proceed([text for _, text in running], parents)


def _best(
    loop: Loop, scores: _Scores, running: Sequence[tuple[float, _Text]]
) -> Iterator[tuple[float, int, int]]:
    """Yield score, text and token of the best continuations, enough for all beams to go on."""
    totals = _log_softmax(scores)
    for row, (score, text) in zip(totals, running, strict=True):
        _apply_rules(loop, row, text)
        row += score
    flat = totals.ravel()
    wanted = min(loop.beams * (1 + len(loop.end)), flat.size)
    found = np.argpartition(-flat, wanted - 1)[:wanted]
    for place in sorted(found.tolist(), key=lambda place: (-flat[place], place)):
        yield float(flat[place]), *divmod(place, totals.shape[1])


def _is_decided(loop: Loop, ended: Sequence[tuple[float, _Text]], best: float, length: int) -> bool:
    """Return True if no running text counts any more: `beams` texts ended, and are better."""
    if len(ended) < loop.beams:
        return False
    if loop.early_stopping is True:
        return True
    is_longest = loop.early_stopping == "never" and loop.length_penalty > 0
    possible = best / (loop.most if is_longest else length) ** loop.length_penalty
    return bool(possible <= ended[-1][0])


def _added(loop: Loop, text: Sequence[int]) -> int:
    return len(text) - len(loop.start) + loop.written


def _is_over(loop: Loop, text: Sequence[int]) -> bool:
    return text[-1] in loop.end or _added(loop, text) >= loop.most


def _apply_rules(loop: Loop, scores: _Scores, text: Sequence[int]) -> _Scores:
    """Change the scores of the next token in place; return them."""
    size = scores.size
    if loop.repetition_penalty != 1:
        used = [token for token in set(text) if token < size]
        own = scores[used]
        scores[used] = np.where(
            own < 0, own * loop.repetition_penalty, own / loop.repetition_penalty
        )
    added = _added(loop, text)
    hidden = [
        *_repetitions(text, loop.no_repeat),
        *(one[-1] for one in loop.suppress_texts if _ends_with(text, one[:-1])),
        *(loop.end if added < loop.least else ()),
        *loop.suppress,
        *(loop.suppress_first if added == loop.written else ()),
    ]
    scores[[token for token in hidden if token < size]] = -np.inf
    if loop.last is not None and loop.last < size and added == loop.most - 1:
        scores[:] = -np.inf
        scores[loop.last] = 0.0
    return scores


def _repetitions(text: Sequence[int], length: int) -> Iterator[int]:
    """Yield the tokens that would complete a sequence of a length that the text has already."""
    if not length:
        return
    start = text[len(text) - length + 1 :]
    for place in range(len(text) - length + 1):
        if list(text[place : place + length - 1]) == list(start):
            yield text[place + length - 1]


def _ends_with(text: Sequence[int], words: Sequence[int]) -> bool:
    return not words or list(text[-len(words) :]) == list(words)


def _log_softmax(scores: _Scores) -> _Scores:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float64)


def _as_rows(texts: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.array(texts, np.int64)
