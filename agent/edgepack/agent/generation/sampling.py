"""Choice of the next token: the likeliest token, or a draw that a seed repeats."""

import math
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.generation.wiring import SamplingDefaults
from edgepack.errors import DeviceError

Logits = npt.NDArray[np.float32]
MAX_SEED = 2**63 - 1
MAX_TEMPERATURE = 100.0
_FEW = 1024
"""Tokens that are sorted first: nearly always they have the wanted part of the probability."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a text's sampling.

    Attributes:
        temperature: Divisor of the logits; 0 takes the likeliest token.
        top_k: Likeliest tokens that are drawn from; 0 for all.
        top_p: Least sum of the probabilities of the likeliest tokens that are drawn from.
        seed: Start of the random numbers: the same seed gives the same text.
        repetition_penalty: Divisor of the logits of tokens that the text has; 1 for none.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    repetition_penalty: float = 1.0


def choose_sampling(
    defaults: SamplingDefaults,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Sampling:
    """Return the settings of a text; None takes the model's own value, and a random seed.

    Raises:
        ValueError: A value is out of range.
    """
    if temperature is None:
        is_drawn = defaults.do_sample or top_k is not None or top_p is not None
        temperature = defaults.temperature if is_drawn else 0.0
    top_k = defaults.top_k if top_k is None else top_k
    top_p = defaults.top_p if top_p is None else top_p
    seed = secrets.randbelow(MAX_SEED) if seed is None else seed
    for name, value, is_right, expected in (
        ("temperature", temperature, 0 <= temperature <= MAX_TEMPERATURE, "0 to 100"),
        ("top_k", top_k, 0 <= top_k <= 2**24, "0 to 16777216"),
        ("top_p", top_p, 0 < top_p <= 1, "above 0, and at most 1"),
        ("seed", seed, 0 <= seed <= MAX_SEED, f"0 to {MAX_SEED}"),
    ):
        if not is_right:
            raise ValueError(f"{name} is {expected}, not {value}")
    return Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        repetition_penalty=defaults.repetition_penalty,
    )


class Sampler:
    """Draws the tokens of a text, in order.

    Args:
        settings: See `Sampling`.
        prompt: Tokens of the prompt.
    """

    def __init__(self, settings: Sampling, prompt: Iterable[int] = ()) -> None:
        self._settings, self._seen = settings, set(prompt)
        self._random = np.random.Generator(np.random.PCG64(settings.seed))

    def pick(self, logits: Logits) -> int:
        """Return the next token.

        Args:
            logits: float32 (vocabulary,); minus infinity excludes a token.

        Raises:
            DeviceError: The model gave no numbers.
        """
        penalty = self._settings.repetition_penalty
        if penalty != 1:
            seen = np.fromiter(self._seen, np.int64)
            logits, repeated = logits.copy(), logits[seen]
            logits[seen] = np.where(repeated > 0, repeated / penalty, repeated * penalty)
        token = self._choose(logits)
        self._seen.add(token)
        return token

    def _choose(self, logits: Logits) -> int:
        likeliest = int(logits.argmax())
        if not math.isfinite(logits[likeliest]):
            raise DeviceError(
                "the model gives no finite logits",
                remedy="edgepack-agent doctor examines the provider",
            )
        settings = self._settings
        if settings.temperature == 0 or settings.top_k == 1:
            return likeliest
        tokens: npt.NDArray[Any] = np.arange(logits.size)
        if 0 < settings.top_k < logits.size:
            tokens = np.sort(_find_highest(logits, settings.top_k))
        scaled = (logits[tokens].astype(np.float64) - logits[likeliest]) / settings.temperature
        shares = np.exp(scaled)
        if settings.top_p < 1:
            kept = _keep_likeliest(shares, settings.top_p)
            tokens, shares = tokens[kept], shares[kept]
        sums = np.cumsum(shares)
        drawn = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(tokens[min(drawn, sums.size - 1)])


def _find_highest(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return where the highest values are, in any order."""
    return np.argpartition(values, -count)[-count:]


def _keep_likeliest(shares: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.intp]:
    """Return the fewest tokens with a part of all shares, the likeliest first.

    Args:
        shares: float64 (n,), at least 0.
        top_p: The part.
    """
    least = top_p * shares.sum()
    likeliest = np.arange(shares.size)
    if shares.size > _FEW:
        highest = np.sort(_find_highest(shares, _FEW))
        if shares[highest].sum() > least:
            likeliest = highest
    likeliest = likeliest[np.argsort(-shares[likeliest], kind="stable")]
    count = int(np.searchsorted(np.cumsum(shares[likeliest]), least)) + 1
    return likeliest[:count]
