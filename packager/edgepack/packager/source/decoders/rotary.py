"""Rotary embedding: its settings in `config.json`, and its tables.

The tables are computed in float32 like transformers' (`modeling_rope_utils`), so that a decoder
gives the same logits.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.tasks.arrays import Singles

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
_Factors = Annotated[tuple[_Positive, ...], msgspec.Meta(max_length=4096)]

_THETA = 10000.0
_UNBOUNDED = 2**31


class _Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_scaling`, or `rope_parameters` of transformers 5."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Positive | None = None
    partial_rotary_factor: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    factor: _Positive | None = None
    original_max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=2**24)] | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    short_factor: _Factors = ()
    attention_factor: _Positive | None = None
    beta_fast: _Positive | None = None
    beta_slow: _Positive | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class Rotary(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary embedding.

    Attributes:
        frequencies: float32 (size / 2,), radians per position, of each pair of values.
        factor: Factor of cosines and sines.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0

    def tables(self, positions: int) -> tuple[Singles, Singles]:
        """Return cosines and sines, float32 (positions, size / 2)."""
        steps = np.arange(positions, dtype=np.float32)[:, None]
        angles = steps * np.array(self.frequencies, np.float32)
        factor = np.float32(self.factor)
        return np.cos(angles) * factor, np.sin(angles) * factor


def read_rotary(
    document: Mapping[str, Any], file: Path, head_size: int
) -> tuple[Rotary, Rotary, int]:
    """Return the rotary embedding of layers without and with a window, and the longest context.

    Args:
        document: The content of `config.json`.
        file: The file, for messages.
        head_size: Values of a head.

    Raises:
        BuildError: A setting is out of range, or of a kind that is not known.
    """
    stated = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(stated, dict):
        stated = {}
    full = stated.get("full_attention", stated)
    local = stated.get("sliding_attention")
    if local is None and "rope_local_base_freq" in document:
        local = {"rope_theta": document["rope_local_base_freq"]}
    rotary, longest = _make(full, document, file, head_size)
    if local is None:
        return rotary, rotary, longest
    return rotary, _make(local, document, file, head_size)[0], longest


def _make(
    stated: Any, document: Mapping[str, Any], file: Path, head_size: int
) -> tuple[Rotary, int]:
    defaults = {
        key: document[key]
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        if document.get(key) is not None
    }
    try:
        known = {key: value for key, value in dict(stated or {}).items() if value is not None}
        scaling = convert_value(defaults | known, _Scaling)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise BuildError(
            f"the rotary embedding does not fit: {error}",
            found_in=f"{file}, rope_parameters",
            remedy="download the folder again, or correct the number",
        ) from error
    size = int(head_size * (scaling.partial_rotary_factor or 1.0))
    plain = _frequencies(scaling.rope_theta or _THETA, size)
    kind = scaling.rope_type or scaling.type or "default"
    try:
        make = _KINDS[kind]
    except KeyError as error:
        raise BuildError(
            f"the rotary embedding is of the kind {kind!a:.60}",
            found_in=f"{file}, rope_parameters",
            remedy=f"known kinds are {', '.join(_KINDS)}",
        ) from error
    found, factor, longest = make(plain, scaling, document, file)
    return Rotary(frequencies=tuple(map(float, found)), factor=factor), longest


def _frequencies(theta: float, size: int) -> Singles:
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return np.asarray(1.0 / np.power(np.float32(theta), exponents), np.float32)


def _keep(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    return plain, 1.0, _UNBOUNDED


def _make_linear(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    return plain / np.float32(_need(scaling.factor, "factor", file)), 1.0, _UNBOUNDED


def _make_dynamic(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    """Frequencies change with the length beyond the trained context, which is the longest here."""
    return plain, 1.0, scaling.original_max_position_embeddings or _UNBOUNDED


def _make_llama3(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    factor = _need(scaling.factor, "factor", file)
    low = _need(scaling.low_freq_factor, "low_freq_factor", file)
    high = _need(scaling.high_freq_factor, "high_freq_factor", file)
    trained = _need(
        scaling.original_max_position_embeddings, "original_max_position_embeddings", file
    )
    lengths = 2 * math.pi / plain
    smooth = (trained / lengths - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    slow = np.where(lengths > trained / low, plain / factor, plain)
    is_between = ~(lengths < trained / high) & ~(lengths > trained / low)
    return np.where(is_between, between, slow).astype(np.float32), 1.0, _UNBOUNDED


def _make_yarn(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    trained = scaling.original_max_position_embeddings or document["max_position_embeddings"]
    factor = scaling.factor or document["max_position_embeddings"] / trained
    theta, size = scaling.rope_theta or _THETA, 2 * len(plain)

    def dimension(rotations: float) -> float:
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast or 32.0), dimension(scaling.beta_slow or 1.0)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (np.arange(size // 2, dtype=np.float32) - low) / max(high - low, 1e-3)
    kept = 1 - np.clip(ramp, 0, 1)
    found = plain / factor * (1 - kept) + plain * kept
    return found.astype(np.float32), _yarn_factor(scaling, factor), _UNBOUNDED


def _yarn_factor(scaling: _Scaling, factor: float) -> float:
    def scale(times: float) -> float:
        return 0.1 * times * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return scale(scaling.mscale) / scale(scaling.mscale_all_dim)
    return scale(1.0)


def _make_longrope(
    plain: Singles, scaling: _Scaling, document: Mapping[str, Any], file: Path
) -> tuple[Singles, float, int]:
    """Return the frequencies of short texts: longer texts have others, from their first token."""
    trained = _need(
        scaling.original_max_position_embeddings, "original_max_position_embeddings", file
    )
    if len(scaling.short_factor) != len(plain):
        raise BuildError(
            f"the rotary embedding has {len(scaling.short_factor)} factors for {len(plain)} "
            "frequencies",
            found_in=f"{file}, rope_scaling.short_factor",
            remedy="download the folder again",
        )
    times = document["max_position_embeddings"] / trained
    factor = scaling.attention_factor
    if factor is None:
        factor = math.sqrt(1 + math.log(times) / math.log(trained)) if times > 1 else 1.0
    factors = np.array(scaling.short_factor, np.float32)
    return np.asarray(plain / factors), float(factor), int(trained)


_KINDS = {
    "default": _keep,
    "linear": _make_linear,
    "dynamic": _make_dynamic,
    "llama3": _make_llama3,
    "yarn": _make_yarn,
    "longrope": _make_longrope,
    "su": _make_longrope,
}


def _need(value: float | None, key: str, file: Path) -> float:
    if value is None:
        raise BuildError(
            f"the rotary embedding has no {key}",
            found_in=f"{file}, rope_parameters",
            remedy="download the folder again",
        )
    return value
