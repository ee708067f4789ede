"""Encoders of texts: what a Hugging Face folder states of tokenizer, pooling and length.

A folder of sentence-transformers states its pooling in `modules.json` and `1_Pooling/config.json`.
Other folders of an encoder get the pooling that sentence-transformers gives such a folder: the mean
of all tokens, of any length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.generation.vectors import TextVectors, has_tokenizers
from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import MAX_ASSET_BYTES, TOKENIZER, GoldenText
from edgepack.decoding import decode_json
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.inputs import MAX_NAME, Pooling, TextInput

TOKENS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TOKEN_VECTORS = ("last_hidden_state", "token_embeddings")
TEXT_VECTOR = "sentence_embedding"
"""Output of Optimum's exports of sentence-transformers: pooled and normalized."""

TEXTS = (
    "A river flows through the city.",
    "Ein Fluß fließt durch die Stadt.",
    "河流穿过城市。",
    "E = mc², 3.14 % … and “quotes”\t\ttabs",
    "yes",
    "The quick brown fox jumps over the lazy dog, and runs on along the river bank until evening.",
)
"""Texts that prove a tokenizer: several scripts, signs and lengths."""

_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OFFSETS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""Architectures whose positions begin after the padding token's number."""


class EncoderSource(msgspec.Struct, frozen=True, kw_only=True):
    """Encoder of texts.

    Attributes:
        described: The input of texts.
        tokenizer: The `tokenizer.json`.
    """

    described: TextInput
    tokenizer: Path

    def golden_texts(
        self, inputs: Sequence[TensorSpec], run: Callable[[Feeds], Outputs]
    ) -> list[GoldenText]:
        """Return golden texts, with their vectors by the float model.

        Args:
            inputs: Inputs of the model.
            run: Runs the float model.

        Raises:
            BuildError: The tokenizer does not fit the model, or no text fits into the input.
        """
        tensors = [
            SessionTensor(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in inputs
        ]
        try:
            content = read_bounded(self.tokenizer, MAX_ASSET_BYTES)
            vectors = TextVectors(self.described, tensors, content)
        except EdgepackError as error:
            raise BuildError(
                error.problem, found_in=str(self.tokenizer), remedy=error.remedy
            ) from error
        found = []
        for text in TEXTS:
            try:
                tokens = vectors.tokens_of(text)
            except ValueError:  # It is too long for a short input.
                continue
            vector = vectors.vector_of(run(vectors.feeds_of(tokens)), len(tokens))
            content = vector.astype("<f4").tobytes()
            found.append(GoldenText(text=text, tokens=tokens, vector=content))
        if not found:
            raise BuildError(
                f"the model reads {vectors.max_tokens} tokens, and no text is so short",
                found_in=str(self.tokenizer),
                remedy=f"give a longer {self.described.name} in --shape",
            )
        return found


def find_encoder(
    folder: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[EncoderSource | None, str]:
    """Return what makes vectors of texts with a model, and a sentence about it.

    Args:
        folder: Hugging Face folder of the model.
        inputs, outputs: Of the model.

    Returns:
        The encoder, and how texts become vectors; None for another model, and why an encoder's
        texts do not, "" for a model that is none.
    """
    by_name = {spec.name: spec for spec in inputs}
    tokens = by_name.get(TOKENS)
    names = {spec.name: spec for spec in outputs}
    output = next((names[one] for one in (TEXT_VECTOR, *TOKEN_VECTORS) if one in names), None)
    if output is None or tokens is None or not (folder / TOKENIZER).is_file():
        return None, ""
    try:
        return _describe(folder, by_name, tokens, output)
    except _UnfitError as error:
        return None, f"Devices make no vectors of texts with this encoder: {error}."


class _UnfitError(Exception):
    """An encoder that devices cannot use for texts; the message says why."""


def _describe(
    folder: Path, inputs: Mapping[str, TensorSpec], tokens: TensorSpec, output: TensorSpec
) -> tuple[EncoderSource, str]:
    if others := sorted(inputs.keys() - {TOKENS, MASK, TYPES}):
        raise _UnfitError(f"texts do not fill {', '.join(others)}")
    is_whole = output.name == TEXT_VECTOR
    dimensions, sizes = output.shape[-1], [spec.shape for spec in inputs.values()]
    if not all(len(shape) == 2 and (isinstance(shape[0], str) or shape[0] == 1) for shape in sizes):
        raise _UnfitError("its inputs do not take a single text, (1, tokens)")
    if len(output.shape) != (2 if is_whole else 3) or not isinstance(dimensions, int):
        raise _UnfitError(f"{output} has no fixed number of values")
    length = tokens.shape[1]
    if isinstance(length, int) and MASK not in inputs:
        raise _UnfitError(f"{TOKENS} has a fixed length, and the model has no {MASK}")
    if not has_tokenizers():
        raise _UnfitError("the build needs pip install 'edgepack[generative]' to check them")
    config = _read_object(folder / "config.json")
    pooling, normalize, said = _read_pooling(folder, dimensions)
    if is_whole:
        pooling, normalize, said = "none", False, "the model's own pooling"
    try:
        content = read_bounded(folder / TOKENIZER, MAX_ASSET_BYTES)
        vocabulary = _vocabulary(config, tokens)
        TextTokenizer(content, vocabulary)
    except EdgepackError as error:
        raise _UnfitError(error.problem) from error
    described = TextInput(
        name=TOKENS,
        mask=MASK if MASK in inputs else "",
        types=TYPES if TYPES in inputs else "",
        vocabulary=vocabulary,
        max_tokens=_most_tokens(folder, config, length),
        pad=_number(config, "pad_token_id") or 0,
        prefix=_prefix(folder),
        output=output.name,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
    )
    words = f"Texts become vectors of {dimensions} values on a device: {said}"
    words += ", then length 1" if normalize else ""
    return EncoderSource(described=described, tokenizer=folder / TOKENIZER), f"{words}."


def _vocabulary(config: Mapping[str, Any], tokens: TensorSpec) -> int:
    rows = tokens.lookup.rows if tokens.lookup is not None else None
    known = [size for size in (_number(config, "vocab_size"), rows) if size]
    if not known:
        raise _UnfitError("config.json states no vocab_size")
    return min(known)


def _read_pooling(folder: Path, dimensions: int) -> tuple[Pooling, bool, str]:
    """Return pooling and normalization, and a description of where they come from."""
    if not (folder / "modules.json").is_file():
        return "mean", False, "the mean of all tokens, since the folder states no pooling"
    modules = _read(folder / "modules.json", list[dict[str, Any]])
    kinds = [str(one.get("type")).rpartition(".")[2] for one in modules]
    if kinds not in (list(_MODULES), list(_MODULES[:2])):
        raise _UnfitError(
            f"modules.json has {', '.join(kinds)}, and devices know {', '.join(_MODULES)}"
        )
    if modules[0].get("path"):
        raise _UnfitError("its transformer is not at the root of the folder")
    path = str(modules[1].get("path"))
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise _UnfitError(f"modules.json leads to {path!a:.80}")
    settings = _read_object(folder / path / "config.json")
    stated = settings.get("pooling_mode")
    modes = [mode for key, mode in _POOLINGS.items() if settings.get(key) is True]
    if isinstance(stated, str):
        modes = [mode for mode in _POOLINGS.values() if mode == stated]
    if len(modes) != 1:
        raise _UnfitError(f"{path}/config.json has {len(modes)} poolings that devices know, not 1")
    if settings.get("include_prompt", True) is not True and _prefix(folder):
        raise _UnfitError("its pooling leaves the tokens of a prompt out")
    stated_size = settings.get("word_embedding_dimension", settings.get("embedding_dimension"))
    if stated_size not in (None, dimensions):
        raise _UnfitError(f"{path}/config.json is for {stated_size} values, not {dimensions}")
    return modes[0], len(kinds) == len(_MODULES), f"pooling {modes[0]}, as {path} states"


def _most_tokens(folder: Path, config: Mapping[str, Any], length: str | int) -> int:
    """Return the tokens of a text, at most.

    sentence-transformers takes `max_seq_length`, else the smaller of the model's positions and the
    tokenizer's length.
    """
    settings = _read_object(folder / "sentence_bert_config.json")
    if settings.get("do_lower_case") is True:
        raise _UnfitError("sentence_bert_config.json has do_lower_case")
    positions = _number(config, "max_position_embeddings") or _number(config, "n_positions")
    if positions and config.get("model_type") in _OFFSETS:
        positions -= (_number(config, "pad_token_id") or 0) + 1
    tokenizer = _number(_read_object(folder / "tokenizer_config.json"), "model_max_length")
    stated = _number(settings, "max_seq_length")
    known = [positions, stated or tokenizer, length if isinstance(length, int) else None]
    sizes = [size for size in known if size and 0 < size <= 2**24]
    if not sizes:
        raise _UnfitError("the folder states no greatest length")
    return min(sizes)


def _prefix(folder: Path) -> str:
    """Return the text that sentence-transformers puts before each text by default."""
    settings = _read_object(folder / "config_sentence_transformers.json")
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    prefix = prompts.get(name) if name and isinstance(prompts, dict) else ""
    if not isinstance(prefix, str) or len(prefix) > MAX_NAME:
        raise _UnfitError(f"its default prompt is not a text of at most {MAX_NAME} characters")
    return prefix


def _number(settings: Mapping[str, Any], key: str) -> int | None:
    value = settings.get(key)
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _read_object(path: Path) -> dict[str, Any]:
    return _read(path, dict[str, Any]) if path.is_file() else {}


def _read(path: Path, kind: Any) -> Any:
    try:
        return decode_json(read_bounded(path, MAX_ASSET_BYTES), kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _UnfitError(f"{path.name} cannot be read: {error}") from error
