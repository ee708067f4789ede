"""Folders of Whisper: how a sound becomes features, and how the tokens of its text begin and end.

`preprocessor_config.json` states the features, `generation_config.json` the tokens, and
`tokenizer.json` the text. All are read as transformers reads them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.generation.vectors import has_tokenizers
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import MAX_ASSET_BYTES, TOKENIZER
from edgepack.decoding import convert_value, decode_json
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.stages.described_texts import DescribedTexts
from edgepack.stages.wiring import Wiring
from edgepack.tasks.inputs import SoundInput

KIND = "whisper"
"""`model_type` of config.json."""
PREPROCESSOR = "preprocessor_config.json"
_SETTINGS = "tokenizer_config.json"
FILES = (PREPROCESSOR, "generation_config.json", TOKENIZER, _SETTINGS)
"""Files of a folder beside its graphs that a build reads."""
_EXTRACTOR = "WhisperFeatureExtractor"
_NO_TIMES = "<|notimestamps|>"
_MOST_TOKENS = 256
"""New tokens where the folder states no limit: transformers' default for speech."""
_TASK = "transcribe"


def describe_loop(settings: Mapping[str, Any], start: int, found_in: str) -> dict[str, Any]:
    """Return the first tokens of a text, and the most new ones, as Whisper's `generate` takes them.

    Args:
        settings: Of config.json and generation_config.json.
        start: Token that every text begins with.
        found_in: Place of the settings, for messages.

    Raises:
        BuildError: The settings name a language or a task that the model does not have.
    """
    first: list[int | None] = [start]
    task, language = settings.get("task"), settings.get("language")
    if task is None and language is None:
        for rank, (place, token) in enumerate(settings.get("forced_decoder_ids") or [], 1):
            if place != rank:
                break
            first.append(token)
    choices: list[int] = []
    languages: dict[str, int] = settings.get("lang_to_id") or {}
    tasks: dict[str, int] = settings.get("task_to_id") or {}
    if language is not None:
        first.append(_choose(languages, str(language).lower(), "language", found_in))
    elif languages and (len(first) < 2 or first[1] is None):
        choices = sorted(set(languages.values()))
    if task is not None:
        first.append(_choose(tasks, task, "task", found_in))
    elif language is not None and tasks and not set(first) & set(tasks.values()):
        first.append(_choose(tasks, _TASK, "task", found_in))
    no_times = settings.get("no_timestamps_token_id")
    if no_times is not None and first[-1] != no_times:
        first.append(no_times)
    tokens = [one for one in first if one is not None]
    count = len(tokens) + bool(choices)
    most = settings.get("max_new_tokens") or settings.get("max_length", 0) - count
    room = settings.get("max_target_positions", 448) - count
    most = min(most if most > 0 else _MOST_TOKENS, room)
    return {"start": tokens, "choices": choices, "most": most}


def _choose(known: Mapping[str, int], name: str, what: str, found_in: str) -> int:
    token = known.get(name, known.get(f"<|{name}|>"))
    if token is None:
        raise BuildError(
            f"the model has no {what} {name!a:.60}",
            found_in=found_in,
            remedy=f"write one of {', '.join(sorted(known)) or 'none'} there",
        )
    return token


def find_speech(
    folder: Path, settings: Mapping[str, Any], wiring: Wiring
) -> tuple[DescribedTexts | None, str]:
    """Return how devices make texts of sounds with a folder, and a sentence about it.

    Args:
        folder: The folder.
        settings: Its config.json.
        wiring: Of its graphs.

    Returns:
        The source; None for another model, and why devices take features of a model of speech, ""
        for a model that is none.

    Raises:
        BuildError: A file is malformed, or does not fit the model.
    """
    if settings.get("model_type") != KIND:
        return None, ""
    missing = [name for name in (PREPROCESSOR, TOKENIZER) if not (folder / name).is_file()]
    reason = f"the folder has no {missing[0]}" if missing else ""
    if not reason and not has_tokenizers():
        reason = "the build needs pip install 'edgepack[generative]' to check the tokenizer"
    if reason:
        return None, f"Devices take features in place of sounds with this model: {reason}."
    place = str(folder / PREPROCESSOR)
    extractor = _read(folder / PREPROCESSOR)
    if extractor.get("feature_extractor_type", _EXTRACTOR) != _EXTRACTOR or any(
        extractor.get(name) for name in ("dither", "padding_value")
    ):
        raise BuildError(
            f"the features are not those of {_EXTRACTOR} without dither, with silence as padding",
            found_in=place,
            remedy="take the files of the model that was exported",
        )
    tokenizer = folder / TOKENIZER
    try:
        content = read_bounded(tokenizer, MAX_ASSET_BYTES)
        known = TextTokenizer(content, settings.get("vocab_size", 0))
        times = known.find_token(_NO_TIMES)
        rate = extractor.get("sampling_rate", 16_000)
        described = convert_value(
            {
                "kind": "sound",
                "name": wiring.inputs[0].name,
                "rate": rate,
                "samples": extractor.get("chunk_length", 30) * rate,
                "fft": extractor.get("n_fft", 400),
                "hop": extractor.get("hop_length", 160),
                "mels": extractor.get("feature_size", 80),
                "output": wiring.outputs[0],
                "vocabulary": settings["vocab_size"],
                "timestamps": 0 if times is None else times + 1,
                "tidy": _is_tidy(folder / _SETTINGS),
            },
            SoundInput,
        )
    except msgspec.ValidationError as error:
        raise BuildError(f"the features are not known: {error}", found_in=place) from error
    except EdgepackError as error:
        raise BuildError(error.problem, found_in=str(tokenizer), remedy=error.remedy) from error
    sizes = [1, described.mels, described.frames]
    for one in wiring.inputs:
        is_fit = len(one.shape) == len(sizes) and all(
            not isinstance(have, int) or have == want
            for have, want in zip(one.shape, sizes, strict=True)
        )
        if len(wiring.inputs) > 1 or not is_fit:
            raise BuildError(
                f"sounds become features {sizes}, and input '{one.name}' takes {list(one.shape)}",
                found_in=place,
                remedy="take the files of the model that was exported",
            )
    return DescribedTexts(described=described, tokenizer=tokenizer), (
        f"Devices make texts of sounds: {described.words}."
    )


def _is_tidy(path: Path) -> bool:
    return path.is_file() and _read(path).get("clean_up_tokenization_spaces") is True


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = decode_json(read_bounded(path, MAX_ASSET_BYTES), dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(f"cannot read {path.name}: {error}", found_in=str(path)) from error
    return found
