"""Samples of a language model from prompts with answers.

A sample is a whole text with an empty cache: the tokens of a prompt and of its answer. The scores
before each token of the answer, and after its last one, are what a verdict counts.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgepack.agent.generation.template import SETTINGS_FILE, TEMPLATE_FILE, ChatTemplate
from edgepack.decoding import decode_json
from edgepack.errors import BuildError, located
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.samples.files import FEW_SAMPLES, OpenedSamples
from edgepack.packager.samples.prompts import (
    SUFFIX,
    Prompt,
    read_prompts,
    refusal_of_line,
)
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import GOLDEN_ROWS, Feeds, Samples, digest_of
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Integers, Tensor
from edgepack.text import counted

TOKENIZER = "tokenizer.json"
_MOST_FILE_BYTES = 128_000_000
_MOST_TEMPLATE_BYTES = 8_000_000
_MOST_HEAD_SIZE = 4096
_MOST_CHARACTERS = 4_000_000
"""Of a text, prompt and answer together: so many take the tokenizer seconds and 1 GB."""

_MOST_SCORE_BYTES = 256_000_000
"""Scores of the float model, in memory: of 100 texts, 20 tokens of a vocabulary of 32,000."""

_SHORTEN = "shorten the prompt, or remove the line"

_TOKENS = re.compile(r"(?!.*(pos|type|mask|len)).*(id|tok|target)", re.IGNORECASE)
_POSITIONS = re.compile(r".*pos", re.IGNORECASE)
_MASK = re.compile(r".*mask", re.IGNORECASE)
_TYPES = re.compile(r".*type", re.IGNORECASE)


def are_prompts(where: str) -> bool:
    """Return True if samples are a file of prompts with answers."""
    return Path(where).suffix == SUFFIX


def open_texts(where: str, source: SourceModel, progress: Progress) -> OpenedSamples:
    """Open prompts with answers as samples.

    Args:
        where: The file of prompts; see `prompts`.
        source: The model. Its folder, or the folder of its file, has `tokenizer.json` and what
            states the context's length.
        progress: Called once the prompts are read.

    Returns:
        A sample per prompt; equal ones are left out and noted.

    Raises:
        BuildError: A line is malformed or does not fit the model, the tokenizer or a package is
            missing, or the model has an input that prompts do not fill.
    """
    path = Path(where)
    folder = source.folder or source.path.parent
    tokenizer = _open_tokenizer(folder, path)
    template = _read_template(folder)
    prompts = read_prompts(path, template)
    if template.is_there and not any(prompt.is_rendered for prompt in prompts):
        _try_template(template, folder)
    texts = _Texts(source, folder)
    kept: dict[bytes, tuple[Integers, int, int]] = {}
    for prompt in prompts:
        characters = len(prompt.text) + len(prompt.answer)
        if characters > _MOST_CHARACTERS:
            problem = (
                f"prompt and answer have {characters:,} characters, at most "
                f"{_MOST_CHARACTERS:,} are read"
            )
            raise refusal_of_line(problem, path, prompt.line, _SHORTEN)
        before = tokenizer.encode(prompt.text, add_special_tokens=not prompt.is_rendered).ids
        answer = tokenizer.encode(prompt.answer, add_special_tokens=False).ids
        texts.check(before, answer, prompt, path)
        ids = np.array([*before, *answer], np.int64)
        digest = hashlib.sha256(digest_of(texts.feeds(ids)) + len(answer).to_bytes(8))
        kept.setdefault(digest.digest(), (ids, len(answer), prompt.line))
    progress(BuildStep(what=f"reading prompts in {path.name}", done=len(kept), total=len(prompts)))
    chosen = tuple(kept.values())
    notes = []
    if repeated := len(prompts) - len(kept):
        verb = "repeats" if repeated == 1 else "repeat"
        notes.append(f"{repeated} of the {len(prompts)} prompts in {path.name} {verb} another one.")
    if len(kept) < FEW_SAMPLES:
        notes.append(
            f"Only {counted(len(kept), 'different prompt')} in {path.name}: 100 to 300 make "
            "verdicts reliable."
        )
    most = texts.most_answer_tokens(len(chosen))
    if any(count > most for _, count, _ in chosen):
        notes.append(f"Of each answer the last {most} tokens count: the vocabulary is large.")
    answers = sum(min(count, most) for _, count, _ in chosen)
    notes.append(
        f"A variant is judged on {counted(len(kept), 'text')} with "
        f"{counted(answers, 'answer token')}, each token of an answer forced."
    )
    return OpenedSamples(
        samples=Samples(
            count=len(chosen),
            read=lambda index: texts.feeds(chosen[index][0]),
            source=where,
            file_of=lambda index: f"{path}, line {chosen[index][2]}",
            answers=lambda index: chosen[index][1],
            most_answer_tokens=most,
        ),
        digests=tuple(kept),
        notes=tuple(notes),
    )


class _Texts:
    """Makes inputs of texts for a model.

    Args:
        source: The model.
        folder: States the context's length.
    """

    def __init__(self, source: SourceModel, folder: Path) -> None:
        self._specs = source.inputs
        named = [spec for spec in self._specs if spec.dtype in ("int64", "int32")]
        tokens = [spec for spec in named if _TOKENS.match(spec.name)]
        if source.texts is not None:
            tokens = [spec for spec in named if spec.name == source.texts.tokens]
        if len(tokens) != 1:
            raise BuildError(
                f"prompts need one input of tokens, and the model has {len(tokens)} whose name "
                "says so",
                found_in=str(source.path),
                remedy="export the model with an input 'input_ids', or give arrays as samples",
            )
        self._tokens = tokens[0]
        stated = _part(_part(_read_object(folder / "genai_config.json"), "model"), "decoder")
        size = stated.get("head_size")
        self._head_size = size if isinstance(size, int) and 0 < size <= _MOST_HEAD_SIZE else 0
        for spec in self._specs:
            self._value(spec, np.zeros(2, np.int64))  # names what prompts do not fill
        rows = [spec.shape[-1] for spec in source.outputs if len(spec.shape) == 3]
        known = [size for size in rows if isinstance(size, int)]
        if source.texts is not None:
            known.append(source.texts.vocabulary)
        if self._tokens.lookup is not None:
            known.append(self._tokens.lookup.rows)
        self._vocabulary = min(known, default=0)
        self._context = source.texts.context if source.texts else _read_context(folder)

    @property
    def tokens(self) -> str:
        """Name of the input of tokens."""
        return self._tokens.name

    def feeds(self, ids: Integers) -> Feeds:
        """Return the inputs of a text with an empty cache.

        Args:
            ids: Its tokens, (tokens,).
        """
        return {spec.name: self._value(spec, ids) for spec in self._specs}

    def most_answer_tokens(self, texts: int) -> int:
        """Return the tokens of an answer whose scores are kept in memory, for so many texts."""
        of_row = max(self._vocabulary, 1) * np.dtype(np.float32).itemsize
        return max(_MOST_SCORE_BYTES // (of_row * texts), GOLDEN_ROWS)

    def check(
        self, before: Sequence[int], answer: Sequence[int], prompt: Prompt, path: Path
    ) -> None:
        """Reject a text that the model cannot read.

        Raises:
            BuildError: Nothing is left of prompt or answer, the text is too long, or a token is
                not in the vocabulary.
        """
        count, highest = len(before) + len(answer), max((*before, *answer), default=0)
        if not before or not answer:
            words = "prompt" if not before else "answer"
            problem, remedy = f"the {words} has no tokens", f"give a longer {words}"
        elif self._context and count > self._context:
            problem = f"prompt and answer have {count} tokens, the model reads {self._context}"
            remedy = _SHORTEN
        elif self._vocabulary and highest >= self._vocabulary:
            problem = (
                f"the tokenizer gives token {highest}, the model's vocabulary has "
                f"{self._vocabulary}"
            )
            remedy = f"use the {TOKENIZER} that the model was trained with"
        else:
            return
        raise refusal_of_line(problem, path, prompt.line, remedy)

    def _value(self, spec: TensorSpec, ids: Integers) -> Tensor:
        if spec is self._tokens:
            return ids[None].astype(spec.dtype)
        is_open = any(isinstance(size, str) for size in spec.shape[1:])
        if spec.dtype.startswith("float") and len(spec.shape) >= 3 and is_open:
            sizes = [size if isinstance(size, int) else 0 for size in spec.shape[1:]]
            if self._head_size and isinstance(spec.shape[-1], str):
                sizes[-1] = self._head_size  # onnxruntime-genai's builder leaves it open
            return np.zeros((1, *sizes), spec.dtype)
        if len(spec.shape) == 2 and is_open and spec.dtype.startswith(("int", "bool", "float")):
            places = np.arange(len(ids))
            for pattern, value in (
                (_MASK, np.ones_like(places)),
                (_POSITIONS, places),
                (_TYPES, np.zeros_like(places)),
            ):
                if pattern.match(spec.name):
                    return value[None].astype(spec.dtype)
        raise BuildError(
            f"prompts do not fill input {spec.name!r}: it is not tokens, a mask, positions, or a "
            "cache of open length",
            found_in=str(spec),
            remedy=f"--value {toml_key(spec.name)}=… where it is always the same, or give arrays "
            "as samples",
        )


def _open_tokenizer(folder: Path, prompts: Path) -> Any:
    path = folder / TOKENIZER
    if not path.is_file():
        raise BuildError(
            f"prompts need the model's {TOKENIZER}, and its folder has none",
            found_in=str(folder),
            remedy="save the tokenizer next to the model (tokenizer.save_pretrained), or give "
            "arrays as samples",
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise BuildError(
            "prompts need the package tokenizers, which is not installed",
            found_in=str(prompts),
            remedy="pip install 'edgepack[generative]'",
        ) from error
    content = _read(path, _MOST_FILE_BYTES)
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises Exception itself
        raise BuildError(
            f"{TOKENIZER} cannot be read: {error}",
            found_in=str(path),
            remedy="save it again with the model's own tokenizer",
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read(path: Path, most: int) -> bytes:
    try:
        if path.stat().st_size > most:
            raise BuildError(
                f"{path.name} has more than {most:,} bytes", found_in=str(path), remedy="check it"
            )
        return path.read_bytes()
    except OSError as error:
        raise BuildError(
            f"cannot read {path.name}: {error.strerror or error}", found_in=str(path)
        ) from error


def _read_object(path: Path) -> Mapping[str, Any]:
    """Return a JSON object of the model's folder; {} without the file.

    Raises:
        BuildError: The file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        return decode_json(_read(path, _MOST_FILE_BYTES), dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(
            f"{path.name} is not a JSON object: {error}",
            found_in=str(path),
            remedy="download the model's folder again",
        ) from error


def _read_context(folder: Path) -> int:
    """Return how many tokens the model reads, as its folder states; 0 if it states none."""
    stated = (
        _read_object(folder / "config.json").get("max_position_embeddings"),
        _read_object(folder / "config.json").get("n_positions"),
        _part(_read_object(folder / "genai_config.json"), "model").get("context_length"),
    )
    return min((size for size in stated if isinstance(size, int) and size > 0), default=0)


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = value.get(key)
    return part if isinstance(part, dict) else {}


def _read_template(folder: Path) -> ChatTemplate:
    """Return the chat template of a model's folder."""
    files = {
        name: _read(folder / name, _MOST_TEMPLATE_BYTES)
        for name in (TEMPLATE_FILE, SETTINGS_FILE)
        if (folder / name).is_file()
    }
    with located(str(folder)):
        return ChatTemplate(files)


def _try_template(template: ChatTemplate, folder: Path) -> None:
    """Render a message where no prompt has any: devices take messages.

    Raises:
        BuildError: The template fails.
    """
    try:
        template.render([{"role": "user", "content": "Hello"}])
    except ValueError as error:
        raise BuildError(
            str(error),
            found_in=str(folder),
            remedy="mend the template, or remove it: devices then take prompts alone",
        ) from error
