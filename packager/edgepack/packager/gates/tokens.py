"""Evaluation of a decoder by its chosen tokens, against the float model's choice."""

from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.number_format import format_metric
from edgepack.packager.metrics.tokens.chains import (
    FloatChain,
    cut,
    find_end,
    follow_candidate,
    follow_float,
    unchanged,
)
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.token_steps import without_padding_behind
from edgepack.packager.tensors.decoders import Decoder
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Outputs
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
        self._end = find_end(whole)
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
