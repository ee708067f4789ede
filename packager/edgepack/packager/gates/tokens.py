"""Evaluation of a decoder by its chosen tokens, against the float model's choice.

Chains of steps: a decoder is fed its own cache, with the float model's tokens and with its own.

The float model chooses the most probable token after each sample, and continues with its own cache.
A candidate receives the same tokens with its own caches (forced), and chooses by itself (free). The
float model, again with its own cache, reads the candidate's tokens: would the float model have
chosen the same? Until a candidate chooses another token both chains are equal, so that a good
candidate costs little more than a single chain.

Many texts end long before the last step, and nobody reads the tokens after their end: the float
model repeats the same token then, and so does a candidate. The model's folder states the end token,
or else the float model shows it.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.number_format import format_metric
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.token_steps import (
    next_feeds,
    next_scores,
    steps_left,
    without_padding_behind,
)
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Floats, Integers, Outputs
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import Measure, agree
from edgepack.tasks.details import DIVERGENCE, FORCED_TOKENS, FREE_TOKENS, bounded
from edgepack.tasks.tokens.agreement import (
    ChainAgreement,
    ChainCounts,
    Rate,
    TokenAgreement,
    measure_tokens,
)
from edgepack.tasks.tokens.measure import TASK, TOKENS_KEPT
from edgepack.text import counted


class TokenReference:
    """The float model's continuations of some samples.

    Args:
        decoder: How a model is fed.
        samples: Where chains begin.
        float_run: The float model: continues each sample, and reads the candidates' tokens.
    """

    def __init__(self, decoder: Decoder, samples: Samples, float_run: Run) -> None:
        self._decoder = decoder
        self._run = float_run
        self._feeds: list[Feeds] = [without_padding_behind(decoder, feeds) for feeds in samples]
        whole = [follow_float(float_run, decoder, feeds) for feeds in self._feeds]
        self._end = find_end(whole) if decoder.end is None else decoder.end
        self._chains: list[FloatChain] = [cut(chain, self._end) for chain in whole]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that chains evaluate."""
        return self._decoder.outputs

    @property
    def remarks(self) -> tuple[str, ...]:
        """Says so where samples tell nothing."""
        if len(self._chains) < 2 or len({tuple(chain.tokens) for chain in self._chains}) > 1:
            return ()
        return (
            f"The float model says the same after all {len(self._chains)} samples: they tell "
            "little. Give prompts that it goes on with in unlike ways.",
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """None: chains are compared with the float model's own texts."""
        return ()

    @property
    def first(self) -> list[Outputs]:
        """The float model's outputs on the samples themselves."""
        return [chain.first for chain in self._chains]

    def follow(self, run: Run, index: int) -> tuple[Outputs, ChainCounts]:
        """Chain a candidate from a sample; see `follow_candidate`."""
        feeds, chain = self._feeds[index], self._chains[index]
        return follow_candidate(run, self._run, self._decoder, feeds, chain, self._end)

    def unchanged(self, index: int) -> ChainCounts:
        """Return the counts of the float model itself for a sample."""
        return unchanged(self._chains[index])

    @property
    def count(self) -> int:
        """Tokens of all chains."""
        return sum(len(chain.tokens) for chain in self._chains)

    def measure(self, got: Sequence[ChainCounts]) -> ChainAgreement:
        """Measure how well a candidate's choices agree."""
        found = measure_tokens(got)
        measure = Measure(
            scale=TOKENS_KEPT,
            value=found.value,
            low=found.low,
            words=f"{format_metric(found.value)} of the float model's tokens "
            f"({describe_rates(found)})",
            may_differ=one_miss(self.count),
        )
        made = agree(
            TASK.name,
            [measure],
            np.array([_lost(one) for one in got]),
            words=measure.words,
            notes=describe_tokens(found),
            details={
                DIVERGENCE: found.divergence,
                **bounded(FREE_TOKENS, found.free.value, found.free.low, found.free.high),
                **bounded(FORCED_TOKENS, found.forced.value, found.forced.low, found.forced.high),
            },
        )
        return ChainAgreement(**msgspec.structs.asdict(made), positions=found.positions)


def _lost(counts: ChainCounts) -> float:
    """Return the share of a chain's tokens that differ, after either model's tokens."""
    free = float(counts.free.mean()) if counts.free.size else 1.0
    return 1.0 - min(float(counts.forced.mean()), free)


def describe_tokens(agreement: TokenAgreement) -> tuple[str, ...]:
    """Return the results of chains, a sentence each."""
    end = agreement.positions[-1]
    parted = [at.last for at in agreement.positions if at.same < 0.5]
    half = f"half of them part within {parted[0]}" if parted else f"{end.same:.0%} to the end"
    more = "" if agreement.growth < 1.0 else f", {agreement.growth:.1f} times the first quarter's"
    return (
        f"It chooses {format_metric(agreement.value)} of the float model's tokens, fed the cache "
        f"that it made itself, in "
        f"{counted(agreement.chains, 'chain')} of {_describe_steps(agreement)}: "
        f"{describe_rates(agreement)}.",
        f"The divergence from the float model is {agreement.divergence:.2g} nats a token"
        f"{more if agreement.divergence > 0.0 else ''}, and the agreement "
        f"{format_metric(agreement.late.value)} in the last quarter of the steps. Word for word "
        f"the chains say the same for a while: {half}.",
    )


def describe_rates(agreement: TokenAgreement) -> str:
    """Return the agreement after either model's tokens, with its confidence."""
    return (
        f"after its own tokens {_describe_rate(agreement.free)}, after the float model's "
        f"{_describe_rate(agreement.forced)}"
    )


def _describe_steps(agreement: TokenAgreement) -> str:
    mean = agreement.count / agreement.chains
    if round(mean) == agreement.steps:
        return f"{agreement.steps} steps"
    return f"up to {agreement.steps} steps ({mean:.1f} on average, to the end of the text)"


def _describe_rate(rate: Rate) -> str:
    bounds = f"{format_metric(rate.low)} to {format_metric(rate.high)}"
    return f"{format_metric(rate.value)} (95 %: {bounds})"


MOST_STEPS = 64
"""Tokens of a chain."""

_PROBABLE = 256
"""Tokens whose probabilities are kept, the most probable ones; all others count as one."""

_MOST_NATS = 20.0
"""Of a divergence: what a model holds for impossible would count without end."""

_FEWEST_AGAIN = 8
"""So often a token stands at the end of a chain that ends a text: of tokens that are as likely as
not to follow themselves, 1 % are repeated so often by chance."""


class FloatChain(msgspec.Struct, frozen=True, kw_only=True):
    """The float model's continuation of a sample.

    Attributes:
        first: Its outputs on the sample itself.
        most: Number of computed steps.
        tokens: int64 (steps,), the chosen tokens, up to the end of the text.
        probable: int64 (steps, 256 or fewer), the most probable tokens.
        logarithms: float64 (steps, number of probable tokens + 1), natural logarithms of their
            probabilities, and of all others together.
    """

    first: Outputs
    most: int
    tokens: Integers
    probable: Integers
    logarithms: Floats


def follow_float(run: Run, decoder: Decoder, feeds: Feeds) -> FloatChain:
    """Continue a sample with the float model, for as many steps as the model allows.

    Raises:
        BuildError: The model does not run on the sample itself.
    """
    first = outputs = run(feeds)
    tokens, probable, logarithms = [], [], []
    most = min(MOST_STEPS, steps_left(decoder, feeds) or MOST_STEPS)
    while True:
        scores = next_scores(decoder, outputs)
        count = min(_PROBABLE, len(scores))
        likely = np.argpartition(-scores, count - 1)[:count]
        tokens.append(int(scores.argmax()))
        probable.append(likely)
        logarithms.append(_with_others(scores[likely]))
        if len(tokens) == most:
            break
        feeds = next_feeds(decoder, feeds, outputs, tokens[-1])
        try:
            outputs = run(feeds)
        except BuildError:
            break  # it allows no more
    return FloatChain(
        first=first,
        most=len(tokens),
        tokens=np.array(tokens),
        probable=np.stack(probable),
        logarithms=np.stack(logarithms),
    )


def find_end(chains: Sequence[FloatChain]) -> int | None:
    """Find the token that ends texts; None if chains continue to their last step."""
    again = Counter(
        int(chain.tokens[-1])
        for chain in chains
        if len(chain.tokens) > _FEWEST_AGAIN
        and (chain.tokens[-_FEWEST_AGAIN:] == chain.tokens[-1]).all()
    )
    token, count = again.most_common(1)[0] if again else (None, 0)
    return token if len(again) == 1 and count > 1 else None


def cut(chain: FloatChain, end: int | None) -> FloatChain:
    """Cut a chain after the end of its text."""
    steps = len(_until(chain.tokens, end))
    return replace(
        chain,
        tokens=chain.tokens[:steps],
        probable=chain.probable[:steps],
        logarithms=chain.logarithms[:steps],
    )


def _until(tokens: Integers, end: int | None) -> Integers:
    if end is None or end not in tokens:
        return tokens
    return tokens[: int((tokens == end).argmax()) + 1]


def follow_candidate(
    run: Run,
    float_run: Run,
    decoder: Decoder,
    feeds: Feeds,
    chain: FloatChain,
    end: int | None = None,
) -> tuple[Outputs, ChainCounts]:
    """Chain a candidate after a sample, with the float model's tokens and with the candidate's.

    Args:
        run: The candidate.
        float_run: The float model, which reads the candidate's tokens.
        decoder: How both are fed.
        feeds: The sample.
        chain: The float model's chain after the sample.
        end: The token that ends texts; None where none does.

    Returns:
        The candidate's outputs on the sample itself, and the comparison.
    """
    steps = len(chain.tokens)
    chosen = np.empty(steps, np.int64)
    divergence = np.empty(steps)
    forced, fork = feeds, None
    for step, token in enumerate(chain.tokens.tolist()):
        outputs = run(forced)
        if not step:
            first = outputs
        scores = next_scores(decoder, outputs)
        chosen[step] = scores.argmax()
        divergence[step] = _divergence(chain, step, scores)
        if chosen[step] != token and fork is None:
            fork = (step, forced, outputs)
        if step + 1 < steps:
            forced = next_feeds(decoder, forced, outputs, token)
    is_forced = chosen == chain.tokens
    if fork is None:
        return first, ChainCounts(
            forced=is_forced, divergence=divergence, free=is_forced, same=is_forced
        )
    said = _go_on(run, decoder, chosen[: fork[0] + 1], fork[1], fork[2], chain.most, end)
    return first, ChainCounts(
        forced=is_forced,
        divergence=divergence,
        free=said == _choices_after(float_run, decoder, feeds, said, chain, fork[0]),
        same=np.arange(steps) < fork[0],
    )


def unchanged(chain: FloatChain) -> ChainCounts:
    """Return the counts of a variant that always agrees with the float model."""
    same = np.ones(len(chain.tokens), np.bool_)
    return ChainCounts(forced=same, divergence=np.zeros(len(same)), free=same, same=same)


def _go_on(
    run: Run,
    decoder: Decoder,
    said: Integers,
    feeds: Feeds,
    outputs: Outputs,
    steps: int,
    end: int | None,
) -> Integers:
    """Continue a text with a model's own tokens, to the end or for `steps` steps."""
    tokens = said.tolist()
    while len(tokens) < steps and tokens[-1] != end:
        feeds = next_feeds(decoder, feeds, outputs, tokens[-1])
        outputs = run(feeds)
        tokens.append(int(next_scores(decoder, outputs).argmax()))
    return np.array(tokens)


def _choices_after(
    run: Run, decoder: Decoder, feeds: Feeds, said: Integers, chain: FloatChain, known: int
) -> Integers:
    """Return the float model's choice at each place of a candidate's text.

    Args:
        known: The last place of the common beginning.
    """
    choices = chain.tokens[: known + 1].tolist()
    for step in range(len(said)):
        outputs = run(feeds)
        if step > known:
            choices.append(int(next_scores(decoder, outputs).argmax()))
        if len(choices) == len(said):
            break
        feeds = next_feeds(decoder, feeds, outputs, int(said[step]))
    return np.array(choices)


def _divergence(chain: FloatChain, step: int, scores: Floats) -> float:
    wanted = chain.logarithms[step]
    got = _with_others(scores[chain.probable[step]])
    terms = np.exp(wanted) * (wanted - got)
    return float(np.clip(terms[np.exp(wanted) > 0.0].sum(), 0.0, _MOST_NATS))


def _with_others(logarithms: Floats) -> Floats:
    """Return the logarithms, and the logarithm of all other tokens together."""
    rest = max(1.0 - float(np.exp(logarithms).sum()), 1e-12)
    return np.append(logarithms, np.log(rest))
