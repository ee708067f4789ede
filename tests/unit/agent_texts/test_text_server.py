"""Texts over a real model server, by OpenAI's protocol: whole, streamed, cancelled, rejected."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import DeviceError, open_model
from edgepack.agent.config import ServerConfig
from edgepack.agent.generation.decoding import TextCancelledError
from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.server.hosted_model import HostedModel, Inference
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_inference import TextInference
from edgepack.agent.serving.following import Follower
from edgepack.bundle.generation import MAX_CONTEXT
from tests.simulators import text_bundles
from tests.simulators.model_server import Answer, ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import CONTEXT, install_texts, make_text_bundle
from tests.simulators.waiting import wait_until

PROMPT = "Once upon a time"
LONG = 20_000
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("server")
    server = ModelServer(folder, "queue = 4", "parallel = 1")
    write_pointer(
        server.state_dir, install_texts(server.state_dir, make_text_bundle(folder / "bundle"))
    )
    server.start()
    yield server
    server.kill()


def ask(server: ModelServer, path: str, **request: Any) -> Answer:
    return server.ask("POST", f"/v1/{path}", json.dumps({"model": "chat"} | request))


def events(answer: Answer) -> list[Any]:
    """Return the events of a stream, without its last line."""
    assert answer.fields["Content-Type"] == "text/event-stream"
    lines = [line for line in answer.body.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_answers_are_those_of_the_model_in_the_process(server: ModelServer) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 20}
    with open_model("chat", server.state_dir, threads=1) as model:
        chat = model.generate(MESSAGES, **settings)
        text = chat.whole()
        continued = model.generate(PROMPT, **settings).whole()
    answer = ask(server, "chat/completions", messages=MESSAGES, **settings)
    assert answer.status == 200, answer.body
    found = answer.value
    assert found["object"] == "chat.completion"
    assert found["system_fingerprint"] == "1.1.0"
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": text.text}
    assert choice["finish_reason"] == text.finish_reason
    usage = {"prompt_tokens": chat.prompt_tokens, "completion_tokens": len(text.tokens)}
    kept = {"prompt_tokens_details": {"cached_tokens": 0}}
    assert found["usage"] == usage | {"total_tokens": sum(usage.values())} | kept
    (choice,) = ask(server, "completions", prompt=[PROMPT], **settings).value["choices"]
    assert choice["text"] == continued.text


def test_streams_have_the_same_text_in_parts(server: ModelServer) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 20}
    whole = ask(server, "chat/completions", messages=MESSAGES, **settings).value
    found = events(
        ask(
            server,
            "chat/completions",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **settings,
        )
    )
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    parts = [one["choices"][0]["delta"].get("content", "") for one in found[:-1]]
    assert "".join(parts) == whole["choices"][0]["message"]["content"]
    assert found[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert (found[-1]["choices"], found[-1]["usage"]) == ([], whole["usage"])
    assert len({one["id"] for one in found}) == 1
    whole = ask(server, "completions", prompt=PROMPT, **settings).value
    found = events(ask(server, "completions", prompt=PROMPT, stream=True, **settings))
    assert "".join(one["choices"][0]["text"] for one in found) == whole["choices"][0]["text"]


def test_metrics_have_first_token_and_further_tokens(server: ModelServer) -> None:
    ask(server, "completions", prompt="a", temperature=5.0, seed=1, max_tokens=3)
    metrics = server.ask("GET", "/metrics").body.decode()
    for name in ("time_to_first_token", "time_per_output_token"):
        assert f'gen_ai_server_{name}_seconds_count{{edgepack_model="chat"}}' in metrics


def test_models_are_listed(server: ModelServer) -> None:
    (model,) = server.ask("GET", "/v1/models").value["data"]
    assert model == {"id": "chat", "object": "model", "created": 1, "owned_by": "edgepack"}
    assert server.ask("GET", "/v1/models/chat").value == model


@pytest.mark.parametrize(
    ("path", "request_", "status", "problem"),
    [
        ("chat/completions", {}, 400, "missing required field `messages`"),
        ("chat/completions", {"messages": []}, 400, "messages are a list"),
        ("chat/completions", {"messages": MESSAGES, "model": "no"}, 404, "no model 'no'"),
        ("chat/completions", {"messages": MESSAGES, "n": 2}, 400, "does not have n"),
        ("chat/completions", {"messages": MESSAGES, "tools": [1]}, 400, "does not have tools"),
        ("chat/completions", {"messages": MESSAGES, "temperature": -1}, 400, "temperature is"),
        ("completions", {"prompt": "a" * 96}, 400, "has 96 tokens, the model's context is 96"),
        ("completions", {"prompt": ["a", "b"]}, 400, "one prompt, not 2"),
        ("completions", {"prompt": "a", "stream": True, "max_tokens": 0}, 400, "at least 1"),
        ("nothing", {}, 404, "there is no /v1/nothing"),
    ],
)
def test_errors_have_the_form_of_openai(
    server: ModelServer, path: str, request_: dict[str, Any], status: int, problem: str
) -> None:
    answer = ask(server, path, **request_)
    assert answer.status == status
    error = answer.value["error"]
    assert problem in error["message"]
    assert error["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]


def begin_long(server: ModelServer, **request: Any) -> socket.socket:
    """Return a connection on which a long text was asked for."""
    body = json.dumps({"model": "chat", "prompt": "a", "temperature": 5.0, "seed": 1} | request)
    peer = server.connect()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    peer.sendall((head + body).encode())
    return peer


def counts(server: ModelServer) -> dict[str, Any]:
    (found,) = server.ask("GET", "/v2/models/chat/stats").value["model_stats"]
    stats: dict[str, Any] = found["inference_stats"]
    return stats


def test_full_queue_rejects_and_clients_that_go_make_room(
    server: ModelServer,
) -> None:
    failed = counts(server)["fail"]["count"]
    peers = [begin_long(server, stream=bool(number % 2)) for number in range(40)]
    answers = []
    for peer in peers:
        peer.settimeout(20)
        answers.append(peer.recv(100))
        peer.close()
    rejected = [one for one in answers if b" 429 " in one]
    assert rejected
    assert {one[:12] for one in answers} == {b"HTTP/1.1 200", b"HTTP/1.1 429"}
    wait_until(lambda: ask(server, "completions", prompt="a", max_tokens=1).status == 200)
    assert counts(server)["fail"]["count"] >= failed + len(rejected)


def test_client_that_disconnects_ends_its_text(server: ModelServer) -> None:
    for is_stream in (True, False):
        before = counts(server)["fail"]["count"]
        peers = [begin_long(server, stream=is_stream) for _ in range(4)]
        for peer in peers:
            peer.close()
        wait_until(lambda: counts(server)["fail"]["count"] >= before + 3)  # noqa: B023
    assert ask(server, "completions", prompt="a", max_tokens=1).status == 200


def test_thousand_clients_leave_the_server_sound(server: ModelServer) -> None:
    statuses: list[bytes] = []

    def ask_some() -> None:
        for _ in range(125):
            peer = begin_long(server, max_tokens=2)
            peer.settimeout(30)
            statuses.append(peer.recv(20)[:12])
            peer.close()

    threads = [threading.Thread(target=ask_some) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 1000
    assert set(statuses) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}
    assert server.ask("GET", "/v2/health/live").status == 200


def test_server_limits_the_tokens_of_a_text(tmp_path: Path) -> None:
    server = ModelServer(tmp_path, "text_tokens = 20")
    write_pointer(
        server.state_dir, install_texts(server.state_dir, make_text_bundle(tmp_path / "b"))
    )
    server.start()
    try:
        answer = ask(server, "completions", prompt="a" * 20)
        assert "20 tokens, the model's context is 20" in answer.value["error"]["message"]
        found = ask(server, "completions", prompt="a" * 15, temperature=5.0, seed=1).value
        assert found["usage"]["total_tokens"] <= 20 < CONTEXT
    finally:
        server.kill()


def test_long_text_is_cancelled_by_a_server_that_stops(tmp_path: Path) -> None:
    bundle = make_text_bundle(tmp_path / "b", context=20_000)
    write_pointer(tmp_path / "state", install_texts(tmp_path / "state", bundle))
    ended: list[Inference] = []

    async def serve() -> None:
        follower = Follower("chat", tmp_path / "state", threads=1, poll_s=None)
        model = HostedModel("chat", follower, ServerConfig())
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        request = TextRequest(prompt="a", temperature=0.0)
        watch = Stopwatch()
        text = TextInference(request, watch, lambda _: loop.call_soon_threadsafe(begun.set))
        model.submit(text, ended.append)
        await begun.wait()
        assert model.busy
        model.cancel_long()
        while model.busy:
            await asyncio.sleep(0.001)
        model.close()

    asyncio.run(serve())
    assert isinstance(ended[0].error, TextCancelledError)


def test_application_gets_the_same_pieces_from_the_server(server: ModelServer) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 20}
    with (
        open_model("chat", server.state_dir, threads=1) as own,
        open_model("chat", server.state_dir, via="server") as served,
    ):
        for prompt in (PROMPT, MESSAGES):
            text, same = own.generate(prompt, **settings), served.generate(prompt, **settings)
            assert list(text) == list(same)
            assert text.bundle == same.bundle
            assert text.prompt_tokens == same.prompt_tokens
            assert text.completion_tokens == same.completion_tokens
            assert same.token_ms > 0
            assert same.first_token_ms > 0
        for wrong, problem in (("a" * 96, "the prompt has 96 tokens"), ([], "messages are a list")):
            with pytest.raises(ValueError, match=problem):
                served.generate(wrong)
        with served.generate(PROMPT, temperature=5.0) as cut:
            next(cut)
        with pytest.raises(StopIteration):
            next(cut)
    with pytest.raises(ValueError, match="the model is closed"):
        served.generate(PROMPT)


def test_text_of_a_killed_server_is_an_error(tmp_path: Path) -> None:
    server = ModelServer(tmp_path)
    bundle = make_text_bundle(tmp_path / "b", context=20_000)
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    with open_model("chat", server.state_dir, via="server") as served:
        text = served.generate("a", temperature=0.0)
        next(text)
        server.kill()
        with pytest.raises(DeviceError, match="the model server ended the text"):
            text.whole()


def test_client_that_leaves_within_a_long_prompt_ends_it(tmp_path: Path) -> None:
    server = ModelServer(tmp_path, "parallel = 1")
    bundle = make_text_bundle(tmp_path / "b", context=LONG, variants={"cpu": "prompt"})
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    try:
        for is_stream in (True, False):
            before = counts(server)["fail"]["count"]
            peer = begin_long(server, stream=is_stream, prompt="a" * (LONG - 10))
            wait_until(lambda: 'active{edgepack_model="chat"} 1' in metrics_of(server))
            peer.close()
            wait_until(lambda: counts(server)["fail"]["count"] == before + 1)  # noqa: B023
        assert ask(server, "completions", prompt="a", max_tokens=1).status == 200
        first = 'gen_ai_server_time_to_first_token_seconds_count{edgepack_model="chat"} 1'
        assert first in metrics_of(server), "neither long prompt came to its first token"
    finally:
        server.kill()


def test_cache_without_memory_is_rejected_with_bytes_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("KV_HEADS", 2), ("HEAD", 256), ("LAYERS", 8)):
        monkeypatch.setattr(text_bundles, name, value)
    assets = text_bundles.make_assets(context_length=MAX_CONTEXT)  # 32 KB a token: 550 GB
    server = ModelServer(tmp_path)
    bundle = make_text_bundle(tmp_path / "b", assets=assets)
    write_pointer(server.state_dir, install_texts(server.state_dir, bundle))
    server.start()
    try:
        for settings in ({}, {"stream": True}):
            answer = ask(server, "completions", prompt="a", **settings)
            error = answer.value["error"]
            assert (answer.status, error["type"]) == (429, "rate_limit_error")
            needed = int(error["message"].partition(" bytes of memory")[0].rpartition(" ")[2])
            assert needed > MAX_CONTEXT * 32 * 1024
            assert "are free" in error["message"]
        assert ask(server, "completions", prompt="a", max_tokens=2).status == 200
    finally:
        server.kill()


def metrics_of(server: ModelServer) -> str:
    return server.ask("GET", "/metrics").body.decode()
