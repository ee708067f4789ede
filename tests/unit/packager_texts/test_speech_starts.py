"""First tokens of Whisper's texts, against transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest

from edgepack.errors import BuildError
from edgepack.packager.stages.speech import describe_loop

FOLDER = Path(__file__).parents[2] / "huggingface" / "speech"
SETTINGS = json.loads((FOLDER / "config.json").read_text())
SETTINGS |= json.loads((FOLDER / "generation_config.json").read_text())
STARTS = json.loads((FOLDER / "recorded.json").read_text())["starts"]
START, GERMAN = SETTINGS["decoder_start_token_id"], SETTINGS["lang_to_id"]["<|de|>"]


def change(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (SETTINGS | changes).items() if value is not None}


@pytest.mark.parametrize("recorded", STARTS, ids=lambda one: json.dumps(one["settings"]))
def test_first_tokens_are_those_of_transformers(recorded: dict[str, Any]) -> None:
    """The recorded sound is German, as the model detects."""
    loop = describe_loop(change(recorded["settings"]), START, "here")
    tokens = loop["start"]
    if loop["choices"]:
        assert GERMAN in loop["choices"]
        tokens = [tokens[0], GERMAN, *tokens[1:]]
    assert tokens == recorded["tokens"]


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 32 - 4),
        ({"max_new_tokens": 5}, 5),
        ({"max_new_tokens": 500}, 32 - 4),
        ({"max_length": None}, 32 - 4),
        ({"max_length": None, "max_target_positions": 448}, 256),
        ({"max_length": 20}, 20 - 4),
    ],
)
def test_new_tokens_are_bounded_as_stated(changes: dict[str, Any], most: int) -> None:
    assert describe_loop(change(changes), START, "here")["most"] == most


@pytest.mark.parametrize(("name", "value"), [("language", "xx"), ("task", "sing")])
def test_what_the_model_does_not_have_is_named(name: str, value: str) -> None:
    with pytest.raises(BuildError, match=f"no {name} '{value}'") as caught:
        describe_loop(change({name: value}), START, "here")
    assert "one of" in str(caught.value.remedy)
