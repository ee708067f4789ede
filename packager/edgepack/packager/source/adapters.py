"""An adapter (LoRA) as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

The result are the tensors for the places of a base (`bundle.adapters`). A product of the base may
be made of several modules: their A stand side by side, and their B in blocks. B has the scale.
Strangers wrote both files: all sizes are compared with those of the base.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edgepack.bundle.adapters import MAX_RANK, AdaptedProduct, AdapterPlaces
from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.packager.source.decoders.weights import GPT2_MODULES, Weights, open_weights
from edgepack.packager.source.decoders.wiring import read_document
from edgepack.tasks.arrays import Singles

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(
    r"base_model\.model\.(?:(?:model\.)+layers|transformer\.h)\.(\d{1,4})\."
    r"([A-Za-z0-9_.]{1,120})\.lora_([AB])(?:\.default)?\.weight"
)
_SAVE = "save the adapter with PEFT's save_pretrained"


_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations after which the base is no longer the model that the adapter adds to."""


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """Used keys of `adapter_config.json`."""

    peft_type: str
    r: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANK)]
    lora_alpha: Annotated[float, msgspec.Meta(gt=0, le=1e6)]
    use_rslora: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    use_bdlora: Any = None
    alora_invocation_tokens: list[int] | None = None
    init_lora_weights: bool | str | None = True
    lora_bias: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


class SourceAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Adapter for the places of a base.

    Attributes:
        file: File of the weights.
        sha256: Digest of both files, hex.
        size_bytes: Size of both files.
        rank: Largest rank of a module.
        modules: Modules that it changes, e.g. `self_attn.q_proj`.
        tensors: float32 tensors by the names of the base's places.
    """

    file: Path
    sha256: str
    size_bytes: int
    rank: int
    modules: tuple[str, ...]
    tensors: Mapping[str, Singles]


class _Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the two tensors of a module, and the factor of their product."""

    first: str
    second: str
    factor: float


def read_adapter_folder(folder: Path, places: AdapterPlaces, base: str) -> SourceAdapter:
    """Return the adapter of a PEFT folder for the places of a base.

    Args:
        folder: The folder.
        places: Places of the base.
        base: The base for messages: name and version.

    Raises:
        BuildError: A file is missing or malformed, the adapter is of another kind, or does not fit
            the base: module, layer, rank or shape.
    """
    config = _read_config(folder / CONFIG)
    weights = open_weights(folder, WEIGHTS)
    pairs = _find_pairs(weights, config, places, base)
    rows = _count_rows(places)
    tensors: dict[str, Singles] = {}
    for layer in range(places.layers):
        for product in places.products:
            found = {
                part.module: pairs[layer, part.module]
                for part in product.parts
                if (layer, part.module) in pairs
            }
            if found:
                first, second = _compose(weights, product, found, rows, base)
                tensors |= dict(zip(product.tensors(layer), (first, second), strict=True))
    files = [folder / CONFIG, folder / WEIGHTS]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return SourceAdapter(
        file=folder / WEIGHTS,
        sha256=digest.hexdigest(),
        size_bytes=sum(file.stat().st_size for file in files),
        rank=max(weights.shape(pair.first)[0] for pair in pairs.values()),
        modules=tuple(sorted({module for _, module in pairs})),
        tensors=tensors,
    )


def _count_rows(places: AdapterPlaces) -> dict[str, int]:
    """Return the rows of each module's weight."""
    rows: dict[str, int] = {}
    for part in (part for product in places.products for part in product.parts):
        rows[part.module] = max(rows.get(part.module, 0), part.first + part.size)
    return rows


def _read_config(file: Path) -> _Config:
    try:
        config = convert_value(read_document(file), _Config)
    except msgspec.ValidationError as error:
        raise BuildError(
            f"the configuration of the adapter does not fit: {error}",
            found_in=str(file),
            remedy=_SAVE,
        ) from error
    for is_there, what in (
        (config.peft_type != "LORA", f"is {config.peft_type!a:.40}, not LORA"),
        (config.use_dora, "has use_dora"),
        (config.use_qalora or bool(config.use_bdlora), "has use_qalora or use_bdlora"),
        (bool(config.alora_invocation_tokens), "begins at alora_invocation_tokens"),
        (
            str(config.init_lora_weights).startswith(_CHANGES_BASE),
            f"was begun by {config.init_lora_weights!a:.40}, which changes the base's weights",
        ),
        (config.bias != "none" or config.lora_bias, "trains biases"),
        (bool(config.modules_to_save), f"replaces modules: {config.modules_to_save}"),
    ):
        if is_there:
            raise BuildError(
                f"the adapter {what[:200]}, and edgepack takes LoRA of linear layers alone",
                found_in=str(file),
                remedy="train it as LoRA without these, or merge it into the model and build that",
            )
    return config


def _find_pairs(
    weights: Weights, config: _Config, places: AdapterPlaces, base: str
) -> dict[tuple[int, str], _Pair]:
    """Return the tensors of each layer's modules."""
    modules = {part.module for product in places.products for part in product.parts}
    found: dict[tuple[int, str], dict[str, str]] = {}
    for name in weights:
        matched = _TENSOR.fullmatch(name)
        layer, module = (int(matched[1]), matched[2]) if matched else (0, "")
        module = GPT2_MODULES.get(module, module)
        if matched is None or module not in modules:
            raise BuildError(
                f"the adapter changes {module or name!a:.200}, and {base} has places for "
                f"{', '.join(sorted(modules))}",
                found_in=str(weights.folder / WEIGHTS),
                remedy="train it with target_modules of these",
            )
        if layer >= places.layers:
            raise BuildError(
                f"the adapter has a layer {layer}, and {base} has {places.layers} layers",
                found_in=str(weights.folder / WEIGHTS),
                remedy="give the bundle of the model that it was trained on",
            )
        found.setdefault((layer, module), {})[matched[3]] = name
    if not found:
        raise BuildError(
            "the adapter has no tensors", found_in=str(weights.folder / WEIGHTS), remedy=_SAVE
        )
    pairs = {}
    for (layer, module), names in found.items():
        if len(names) < 2:
            raise BuildError(
                f"the adapter has {next(iter(names.values()))!a:.200} without its pair",
                found_in=str(weights.folder / WEIGHTS),
                remedy=_SAVE,
            )
        path = names["A"].removeprefix("base_model.model.").partition(".lora_")[0]
        rank = _of_pattern(config.rank_pattern, path, config.r)
        alpha = _of_pattern(config.alpha_pattern, path, config.lora_alpha)
        factor = alpha / (math.sqrt(rank) if config.use_rslora else rank)
        stored = weights.shape(names["A"])
        if stored[0] != rank:
            raise BuildError(
                f"{names['A']!a:.200} has the shape {list(stored)}, and the configuration means "
                f"rank {rank}",
                found_in=str(weights.folder / CONFIG),
                remedy=_SAVE,
            )
        pairs[layer, module] = _Pair(first=names["A"], second=names["B"], factor=factor)
    return pairs


def _of_pattern(pattern: Mapping[str, Any] | None, path: str, default: Any) -> Any:
    """Return the value of the first key that is the end of a module's path, as PEFT does."""
    for key, value in (pattern or {}).items():
        plain = key.lstrip("^")
        if path == plain or path.endswith(f".{plain}"):
            return value
    return default


def _compose(
    weights: Weights,
    product: AdaptedProduct,
    pairs: Mapping[str, _Pair],
    rows: Mapping[str, int],
    base: str,
) -> tuple[Singles, Singles]:
    """Return A, (inputs, rank), and B, (rank, outputs), of a product.

    Args:
        weights: The adapter's.
        product: Place of the base.
        pairs: Tensors of the product's modules, by module.
        rows: Rows of each module's weight in the base.
        base: The base for messages.
    """
    read: dict[str, tuple[Singles, Singles]] = {}
    for module, pair in pairs.items():
        first, second = weights.read(pair.first), weights.read(pair.second)
        rank, wanted = first.shape[0], (rows[module], product.inputs)
        if (second.shape[:1], first.shape[1:]) != (wanted[:1], wanted[1:]) or (
            second.shape[1:] != (rank,)
        ):
            raise BuildError(
                f"{pair.first!a:.200} and its pair have the shapes {list(first.shape)} and "
                f"{list(second.shape)}, and the weight in {base} is {list(wanted)}",
                found_in=str(weights.folder / WEIGHTS),
                remedy="give the bundle of the model that it was trained on",
            )
        if not (np.isfinite(first).all() and np.isfinite(second).all()):
            raise BuildError(
                f"{pair.first!a:.200}, or its pair, has values that are not finite",
                found_in=str(weights.folder / WEIGHTS),
                remedy="train it again",
            )
        read[module] = first, second * np.float32(pair.factor)
    left = np.concatenate([first.T for first, _ in read.values()], axis=1)
    right = np.zeros((left.shape[1], product.outputs), np.float32)
    start = place = 0
    for part in product.parts:
        if part.module in read:
            _, second = read[part.module]
            stop = start + second.shape[1]
            own = second[part.first : part.first + part.size]
            right[start:stop, place : place + part.size] = own.T
            start = stop
        place += part.size
    return np.ascontiguousarray(left), right
