"""The official client of OpenAI on a real model server: the judge of the text protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent import open_model
from tests.simulators.late_modules import late
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.simulators.text_bundles import install_texts, make_text_bundle

openai = late("openai")

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelServer, str]]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    server = ModelServer(folder, f'listen = "{port}"')
    write_pointer(server.state_dir, install_texts(server.state_dir, make_text_bundle(folder / "b")))
    server.start()
    yield server, f"http://127.0.0.1:{port}/v1"
    server.kill()


def test_client_lists_chats_streams_and_understands_errors(
    served: tuple[ModelServer, str], tmp_path: Path
) -> None:
    server, url = served
    with open_model("chat", server.state_dir, threads=1) as model:
        chat = model.generate(MESSAGES, temperature=1.0, seed=5, max_tokens=20).whole()
        text = model.generate("Once", temperature=1.0, seed=5, max_tokens=20).whole()
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert [one.id for one in client.models.list()] == ["chat"]
        assert client.models.retrieve("chat").owned_by == "edgepack"
        settings = {"model": "chat", "temperature": 1.0, "seed": 5, "max_tokens": 20}
        whole = client.chat.completions.create(messages=MESSAGES, **settings)
        assert whole.choices[0].message.content == chat.text
        assert whole.choices[0].finish_reason == chat.finish_reason
        assert whole.usage.completion_tokens == len(chat.tokens)
        assert whole.system_fingerprint == "1.1.0"
        usage = {"include_usage": True}
        stream = client.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options=usage, **settings
        )
        events = list(stream)
        parts = [one.choices[0].delta.content or "" for one in events if one.choices]
        assert "".join(parts) == chat.text
        assert events[-1].usage.total_tokens == whole.usage.total_tokens
        assert client.completions.create(prompt="Once", **settings).choices[0].text == text.text
        parts = [
            one.choices[0].text
            for one in client.completions.create(prompt="Once", stream=True, **settings)
        ]
        assert "".join(parts) == text.text
        with client.chat.completions.create(
            messages=MESSAGES, stream=True, model="chat", temperature=5.0
        ) as stream:
            next(iter(stream))  # The rest is not read: the text ends.
        with pytest.raises(openai.NotFoundError, match="no model 'other'"):
            client.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="the model's context is 96"):
            client.completions.create(model="chat", prompt="a" * 200)


def test_client_sees_the_tokens_of_a_prompt_that_were_kept(tmp_path: Path) -> None:
    port = free_port()
    server = ModelServer(tmp_path, f'listen = "{port}"')
    bundle = make_text_bundle(tmp_path / "b", context=2000)
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    system = {"role": "system", "content": "You answer in one word. " * 20}
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        answers = [
            client.chat.completions.create(
                model="chat", messages=[system, *MESSAGES], max_tokens=8, temperature=0.0
            )
            for _ in range(2)
        ]
    server.kill()
    assert [one.usage.prompt_tokens_details.cached_tokens for one in answers] == [0, 384]
    assert len({one.choices[0].message.content for one in answers}) == 1


def test_client_sees_that_a_server_died_in_a_text(tmp_path: Path) -> None:
    port = free_port()
    server = ModelServer(tmp_path, f'listen = "{port}"')
    bundle = make_text_bundle(tmp_path / "b", context=20_000)
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0
        ) as client,
        client.completions.create(
            model="chat", prompt="Once", stream=True, temperature=0.0, max_tokens=15_000
        ) as stream,
    ):
        parts = iter(stream)
        next(parts)
        server.kill()
        with pytest.raises(openai.APIConnectionError):
            list(parts)
