"""Rules of a text from the settings of transformers' `generate`."""

import re
from pathlib import Path
from typing import Any

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.stages.loops import Loop
from edgepack.toml_errors import describe_type_error

_MOST_TOKENS = 64
"""Tokens of a text where the folder states neither `max_new_tokens` nor `max_length`."""

_DEFAULTS: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "penalty_alpha": None,
    "guidance_scale": 1.0,
    "constraints": None,
    "force_words_ids": None,
    "num_return_sequences": 1,
    "renormalize_logits": False,
    "stop_strings": None,
    "max_time": None,
    "watermarking_config": None,
    "dola_layers": None,
    "token_healing": False,
}
"""Settings that change a text and are not followed, with the values that change nothing."""

_KEYS = {
    "start": "decoder_start_token_id",
    "end": "eos_token_id",
    "least": "min_new_tokens or min_length",
    "most": "max_new_tokens or max_length",
    "last": "forced_eos_token_id",
    "suppress": "suppress_tokens",
    "suppress_first": "begin_suppress_tokens",
    "suppress_texts": "bad_words_ids",
    "no_repeat": "no_repeat_ngram_size",
    "beams": "num_beams",
}
"""Names in transformers of the keys of `Loop`, where these differ."""


def read_rules(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the rules of a text as keys of `Loop`, without those of the graphs.

    Args:
        settings: Content of `generation_config.json`.
        file: The file that error messages name.

    Raises:
        BuildError: Start or end is missing, or a setting asks for other rules.
    """
    start, end = settings.get("decoder_start_token_id"), settings.get("eos_token_id")
    ends = end if isinstance(end, list) else [end]
    if not isinstance(start, int) or not ends or not all(isinstance(one, int) for one in ends):
        raise BuildError(
            f"the folder states no start and end of a text: decoder_start_token_id is {start!r}, "
            f"eos_token_id is {end!r}",
            found_in=str(file),
            remedy="write both there, as whole numbers",
        )
    for name, default in _DEFAULTS.items():
        if settings.get(name, default) not in (default, None):
            raise BuildError(
                f"{name} is {settings[name]!r}, which a device does not follow",
                found_in=str(file),
                remedy=f"remove {name} there; texts are then written without it",
            )
    for name in ("max_new_tokens", "max_length"):
        if isinstance(most := settings.get(name), int) and most < 1:
            raise BuildError(
                f"{name} is {most}: a text has one token at least",
                found_in=str(file),
                remedy=f"write the number of tokens, or remove {name}",
            )
    first = settings.get("forced_bos_token_id")
    forced = [token for _, token in settings.get("forced_decoder_ids") or [] if token is not None]
    words = settings.get("bad_words_ids") or []
    last = settings.get("forced_eos_token_id")
    most = settings.get("max_new_tokens") or (settings.get("max_length") or 1) - 1 - len(forced)
    least = (settings.get("min_length") or 0) - 1 - len(forced)
    rules = {
        "start": [start, *forced, *([] if first is None else [first])],
        "written": 0 if first is None else 1,
        "end": ends,
        "least": max(settings.get("min_new_tokens") or 0, least, 0),
        "most": most if most > 0 else _MOST_TOKENS,
        "last": last[0] if isinstance(last, list) else last,
        "suppress": settings.get("suppress_tokens") or [],
        "suppress_first": settings.get("begin_suppress_tokens") or [],
        "suppress_texts": [one for one in words if one not in [[token] for token in ends]],
        "no_repeat": settings.get("no_repeat_ngram_size") or 0,
        "repetition_penalty": settings.get("repetition_penalty") or 1.0,
        "beams": settings.get("num_beams") or 1,
        "length_penalty": 1.0
        if settings.get("length_penalty") is None
        else settings["length_penalty"],
        "early_stopping": settings.get("early_stopping") or False,
    }
    _check(rules, file)
    return rules


def _check(rules: dict[str, Any], file: Path) -> None:
    """Check types and bounds of the rules.

    Raises:
        BuildError: A value is wrong; the message has the name that the value has in transformers.
    """
    try:
        convert_value({"tokens": "input_ids", **rules}, Loop)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, rules, Loop)
        key = re.split(r"\W", found.place)[0]
        name = _KEYS.get(key, key)
        raise BuildError(
            found.problem.replace(key, name, 1),
            found_in=f"{file}, {name}",
            remedy=found.remedy,
        ) from error
