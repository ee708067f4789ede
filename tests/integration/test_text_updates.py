"""From a Hugging Face folder to texts on a device: built, installed, streamed, updated.

A real agent runs with its model server. The first release is built by the command from `llama`,
whose greedy texts transformers recorded. The second release is another decoder.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import open_model
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.device import Device, running
from tests.simulators.model_server import UnixConnection
from tests.simulators.text_bundles import make_text_bundle
from tests.simulators.waiting import wait_until

LLAMA = Path(__file__).parents[1] / "huggingface" / "llama"
PROMPT = "Tell me what"
STREAMS = 4
Written = tuple[str, int, str]
"""Version, seed and text."""


def run(module: str, *words: str | Path) -> None:
    command = [sys.executable, "-m", module, *map(str, words)]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def device(tmp_path: Path, release_keys: Keys) -> Iterator[Device]:
    """Yield a running device that serves a release built from `llama`."""
    bundle, private = tmp_path / "chat-1.0.0.edgepack", release_keys[1].with_suffix(".key")
    prompts = LLAMA.with_name("prompts.jsonl")
    words = ("build", LLAMA, "--profile", "fp32", "--calibration", prompts, "--name", "chat")
    run("edgepack.cli", *words, "--key", private, "-o", bundle)
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    with device.config.open("a") as config:
        config.write("[server]\nenabled = true\nqueue = 64\n[providers]\nthreads = 1\n")
    with running(device):
        wait_until(lambda: _models(device) is not None, device.said)
        install(device, bundle)
        wait_until(lambda: _models(device) == ["chat"], device.said)
        yield device


def install(device: Device, bundle: Path) -> None:
    run("edgepack.agent.cli", "install", bundle, "--soak", "0", "--config", device.config)


def ask(device: Device, method: str, path: str, message: object = None) -> bytes:
    connection = UnixConnection(device.state_dir / "latency" / "server.sock")
    try:
        connection.request(method, path, json.dumps(message) if message else b"")
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response.read()
    finally:
        connection.close()


def _models(device: Device) -> list[str] | None:
    """Return the models that write texts; None without a server."""
    try:
        return [one["id"] for one in json.loads(ask(device, "GET", "/v1/models"))["data"]]
    except OSError:
        return None


def stream(device: Device, seed: int, **settings: Any) -> Written:
    """Return a text that came from the server as a stream."""
    request = {"model": "chat", "prompt": PROMPT, "seed": seed, "stream": True} | settings
    *events, last, _ = ask(device, "POST", "/v1/completions", request).decode().split("\n\n")
    assert last == "data: [DONE]", last
    found = [json.loads(event.removeprefix("data: ")) for event in events]
    versions = {one["system_fingerprint"] for one in found}
    assert len(versions) == 1, versions
    text = "".join(one["choices"][0]["text"] for one in found)
    return versions.pop(), seed, text


def test_texts_are_those_of_transformers_and_belong_to_one_release_each(
    device: Device, tmp_path: Path, release_keys: Keys
) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40}
    written: list[Written] = []
    faults: list[BaseException] = []
    is_over = threading.Event()
    with open_model("chat", device.state_dir, threads=1) as model:
        for text in json.loads((LLAMA / "reference.json").read_text())["texts"]:
            most = len(text["greedy_tokens"])
            own = model.generate(text["prompt"], temperature=0.0, max_tokens=most).whole()
            assert list(own.tokens) == text["greedy_tokens"]

        def write(number: int) -> None:
            seed = number // 2
            try:
                while not is_over.is_set():
                    if number % 2:
                        written.append(stream(device, seed, **settings))
                        continue
                    text = model.generate(PROMPT, seed=seed, **settings)
                    written.append((text.bundle.version, seed, text.whole().text))
            except BaseException as error:
                faults.append(error)
                raise

        threads = [threading.Thread(target=write, args=(one,)) for one in range(2 * STREAMS)]
        for thread in threads:
            thread.start()
        second = make_text_bundle(tmp_path / "second", release_keys[0], release=2_000_000)
        install(device, second)
        wait_until(lambda: model.bundle.version == "1.2000000.0", device.said)
        seen = len(written)
        wait_until(lambda: len(written) > seen + 4 * STREAMS or bool(faults), device.said)
        is_over.set()
        for thread in threads:
            thread.join()
        assert not faults
    expected: dict[tuple[str, int], set[str]] = {}
    for version, seed, text in written:
        expected.setdefault((version, seed), set()).add(text)
    assert {version for version, _ in expected} == {"1.0.0", "1.2000000.0"}
    assert all(len(texts) == 1 for texts in expected.values()), "the same seed, the same text"
    for seed in range(STREAMS):
        assert expected["1.0.0", seed] != expected["1.2000000.0", seed]
