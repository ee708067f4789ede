"""Texts by a JSON schema, of a model with random weights: only the schema shapes the texts."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pydantic
import pytest

from edgepack.agent import DeviceError, Model, open_model
from edgepack.agent.generation.grammar import GrammarError, Grammars
from tests.simulators.late_modules import late
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.simulators.text_bundles import END, VOCABULARY, install_texts, make_text_bundle

jsonschema = late("jsonschema")
openai = late("openai")

CONTEXT = 600
MESSAGES = [{"role": "user", "content": "Hi"}]
CLOSED = {"additionalProperties": False}
ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "maxLength": 12},
        "number": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["street", "number"],
    **CLOSED,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"enum": ["red", "green", 3, None]},
    {"type": "boolean"},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "integer", "minimum": -5, "maximum": 120},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.01},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 5},
    ADDRESS,
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 10},
            "address": {"$ref": "#/$defs/address"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        },
        "required": ["name", "address", "tags"],
        "$defs": {"address": ADDRESS},
        **CLOSED,
    },
    {
        "anyOf": [
            {"type": "object", "properties": {name: {"const": True}}, "required": [name], **CLOSED}
            for name in ("ok", "no")
        ]
    },
    {
        "type": "array",
        "prefixItems": [{"type": "string", "format": "date"}, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
    },
)


class River(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    km: int = pydantic.Field(ge=0, le=10_000)
    kind: Literal["stream", "river"] | None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelServer, str]]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    server = ModelServer(folder, f'listen = "{port}"', "parallel = 3")
    bundle = make_text_bundle(folder / "b", context=CONTEXT)
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    yield server, f"http://127.0.0.1:{port}/v1"
    server.kill()


@pytest.fixture(scope="module")
def model(server: tuple[ModelServer, str]) -> Iterator[Model]:
    with open_model("chat", server[0].state_dir, threads=1) as model:
        yield model


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_every_text_that_is_not_cut_is_valid(model: Model, number: int) -> None:
    schema, complete = SCHEMAS[number], 0
    free = model.generate(MESSAGES, max_tokens=20, temperature=1.0, seed=0).whole().text
    with pytest.raises((json.JSONDecodeError, jsonschema.ValidationError)):
        jsonschema.validate(json.loads(free), schema)
    for seed in range(7):
        temperature = float(seed > 0)  # The first is greedy.
        text = model.generate(
            MESSAGES, schema=schema, temperature=temperature, seed=seed, max_tokens=400
        ).whole()
        if text.finish_reason == "length":
            continue
        complete += 1
        jsonschema.validate(json.loads(text.text), schema)
    assert complete >= 5


def test_the_same_seed_gives_the_same_text_and_max_tokens_cuts(model: Model) -> None:
    schema = SCHEMAS[7]
    first, second = (
        model.generate(MESSAGES, schema=schema, temperature=1.0, seed=4).whole() for _ in range(2)
    )
    assert first == second
    cut = model.generate(MESSAGES, schema=schema, temperature=1.0, seed=4, max_tokens=6).whole()
    assert (cut.finish_reason, cut.tokens) == ("length", first.tokens[:6])
    stopped = model.generate(
        MESSAGES, schema=schema, temperature=1.0, seed=4, stop=['"address"']
    ).whole()
    assert stopped.text == first.text[: first.text.index('"address"')]


def test_several_schemas_at_once_with_a_kept_beginning(model: Model) -> None:
    messages = [{"role": "user", "content": "Answer in JSON. " * 12}]

    def write(number: int) -> str:
        schema = SCHEMAS[number % len(SCHEMAS)]
        text = model.generate(messages, schema=schema, temperature=1.0, seed=1).whole()
        if text.finish_reason == "stop":
            jsonschema.validate(json.loads(text.text), schema)
        return text.text

    alone = [write(number) for number in range(len(SCHEMAS))]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(write, range(2 * len(SCHEMAS)))) == alone * 2


def test_openai_client_parses_and_streams(server: tuple[ModelServer, str], model: Model) -> None:
    settings: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "temperature": 1.0}
    with openai.OpenAI(base_url=server[1], api_key="none", max_retries=0) as client:
        done = 0
        for seed in range(8):
            try:
                parsed = client.chat.completions.parse(
                    response_format=River, seed=seed, max_tokens=400, **settings
                )
            except openai.LengthFinishReasonError:
                continue
            done += isinstance(parsed.choices[0].message.parsed, River)
        assert done >= 4
        form = {"type": "json_schema", "json_schema": {"name": "address", "schema": ADDRESS}}
        stream = client.chat.completions.create(
            response_format=form, seed=3, stream=True, **settings
        )
        text = "".join(one.choices[0].delta.content or "" for one in stream)
        own = model.generate(MESSAGES, schema=ADDRESS, temperature=1.0, seed=3).whole()
        assert text == own.text
        jsonschema.validate(json.loads(text), ADDRESS)
        whole = client.chat.completions.create(
            response_format={"type": "json_object"}, seed=2, **settings
        )
        assert whole.choices[0].message.content.startswith("{")
        if whole.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(whole.choices[0].message.content), dict)
        text = client.completions.create(
            model="chat", prompt="Once", temperature=1.0, extra_body={"response_format": form}
        )
        assert text.choices[0].text.startswith("{")
        for wrong, words in (
            ({"type": "json_schema"}, "no json_schema.schema"),
            ({"type": "xml"}, "xml"),
            (of({"type": "nope"}), "the schema cannot be used: Invalid type: nope"),
        ):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                client.chat.completions.create(response_format=wrong, **settings)
            assert caught.value.type == "invalid_request_error"
    with open_model("chat", server[0].state_dir, via="server") as served:
        assert served.generate(MESSAGES, schema=ADDRESS, temperature=1.0, seed=3).whole() == own
        with pytest.raises(ValueError, match="Invalid type: nope"):
            served.generate(MESSAGES, schema={"type": "nope"})


def of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_schemas_that_cannot_be_used_are_errors_with_the_reason(model: Model) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    wide: dict[str, Any] = {
        "allOf": [
            {"anyOf": [{"properties": {f"{letter}{at}": {}}} for letter in "abcdef"]}
            for at in range(9)
        ]
    }
    for schema, words in (
        ({"$ref": "http://example.com/x"}, "does not fetch resources"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"not": {"type": "string"}}, "Unimplemented keys"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no text fits"),
        (deep, "recursion limit|is not JSON"),
        (wide, "schema too large"),
        ({"description": "x" * 200_000}, "bytes, at most 131072"),
        ({"type": {1, 2}}, "Type|type|unserializable|is not JSON"),
        ("object", "a schema is an object, not str"),
    ):
        with pytest.raises(ValueError, match=words):
            model.generate(MESSAGES, schema=schema)  # type: ignore[arg-type]


def test_a_device_without_the_library_says_what_to_install(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(DeviceError, match=r"pip install 'edgepack\[json\]'"):
        model.generate(MESSAGES, schema=ADDRESS)
    assert model.generate(MESSAGES, max_tokens=2).whole().tokens


def test_a_tokenizer_that_the_library_does_not_read_is_an_error() -> None:
    with pytest.raises(GrammarError, match="does not read its tokenizer"):
        Grammars(b"{}", VOCABULARY, [END]).open(ADDRESS)
