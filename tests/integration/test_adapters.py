"""From a PEFT folder to texts on a device: base and adapter built, installed, chosen by name."""

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import open_model
from edgepack.agent.serving import adapters
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.adapters import ADAPTER_FILE
from edgepack.bundle.archive import read_head
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import decode_manifest
from edgepack.errors import BundleError, DeviceError
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.adapters import LLAMA, MESSAGES, build_adapter, build_base, merge_adapter
from tests.simulators.device import Device, running
from tests.simulators.late_modules import late
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until

openai = late("openai")


def run(device: Device, code: int, *words: str) -> str:
    command = [sys.executable, "-m", "edgepack.agent.cli", *words, "--config", str(device.config)]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == code, ended.stderr
    return str(ended.stdout + ended.stderr)


def post(url: str, body: Mapping[str, object]) -> tuple[int, str]:
    """Ask for a chat; return the status and the error."""
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, str(json.load(error)["error"]["message"])


def install(device: Device, bundle: Path, code: int = 0) -> str:
    return run(device, code, "install", str(bundle), "--soak", "0")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, release_keys: Keys) -> dict[str, Path]:
    """Return a base, two adapters for it, and the base with the adapter in its weights."""
    folder, key = tmp_path_factory.mktemp("bundles"), release_keys[1].with_suffix(".key")
    base = build_base(key, folder / "chat-1.0.0.edgepack", LLAMA, "--adapters")
    merged = merge_adapter(folder / "merged")
    return {
        "chat": base,
        "merged": build_base(key, folder / "merged-1.0.0.edgepack", merged),
        "support": build_adapter(key, folder / "support-1.0.0.edgepack", base),
        "sales": build_adapter(key, folder / "sales-1.0.0.edgepack", base),
    }


def test_adapter_is_built_installed_and_chosen_by_its_name(
    tmp_path: Path, release_keys: Keys, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    private, port, measured = release_keys[1].with_suffix(".key"), free_port(), free_port()
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    with device.config.open("a") as config:
        config.write(f'[server]\nenabled = true\nlisten = "{port}"\n[providers]\nthreads = 1\n')
        config.write(f'[metrics]\nlisten = "127.0.0.1:{measured}"\n')
    with running(device):
        assert "no release of 'chat' serves" in install(device, bundles["support"], 1)
        for bundle in bundles.values():
            install(device, bundle)
        wanted = {}
        for name in ("chat", "merged"):
            with open_model(name, device.state_dir, threads=1) as model:
                wanted[name] = model.generate(MESSAGES, temperature=0.0, max_tokens=40).whole().text
        assert wanted["merged"].startswith("Sure!")
        assert not wanted["chat"].startswith("Sure!")
        with open_model("chat", device.state_dir, threads=1) as model:
            settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
            names = ("support", None, "sales")
            texts = [model.generate(MESSAGES, adapter=name, **settings) for name in names]
            assert [one.bundle.name for one in texts] == ["support", "chat", "sales"]
            written = ["", "", ""]
            while any(pieces := [next(one, None) for one in texts]):  # Token by token, in turn.
                written = [
                    f"{one}{piece.text if piece else ''}"
                    for one, piece in zip(written, pieces, strict=True)
                ]
            assert written == [wanted["merged"], wanted["chat"], wanted["merged"]]
            form = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
            closed = form | {"additionalProperties": False}
            shaped = model.generate(MESSAGES, adapter="support", schema=closed, max_tokens=60)
            assert isinstance(json.loads(shaped.whole().text)["ok"], bool)
            with pytest.raises(ValueError, match=r"no adapter 'law'.* which has sales, support"):
                model.generate(MESSAGES, adapter="law")
        monkeypatch.setattr(adapters, "available_bytes", lambda: 1000)
        with (
            open_model("chat", device.state_dir, threads=1) as model,
            pytest.raises(DeviceError, match=r"needs \d+ bytes of memory .* and 1000 are free"),
        ):
            model.generate(MESSAGES, adapter="support")
        monkeypatch.undo()
        with pytest.raises(DeviceError, match="'support' is an adapter for 'chat'"):
            open_model("support", device.state_dir)
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:

            def listed() -> dict[str, str | None]:
                try:
                    return {one.id: getattr(one, "parent", None) for one in client.models.list()}
                except openai.APIConnectionError:  # The server starts.
                    return {}

            wait_until(lambda: len(listed()) == 4, device.said)
            assert listed() == {"chat": None, "support": "chat", "sales": "chat", "merged": None}
            assert client.models.retrieve("support").parent == "chat"
            for name, text in (("chat", wanted["chat"]), ("support", wanted["merged"])):
                answer = client.chat.completions.create(model=name, messages=MESSAGES, **settings)
                assert answer.choices[0].message.content == text, name
                assert answer.model == name
        unknown: dict[str, object] = {"model": "law", "messages": MESSAGES}
        wait_until(lambda: "sales (adapter of chat)" in post(url, unknown)[1], device.said)
        for name, adapter, expected, words in (
            ("support", "sales", 400, ("'support'", "'sales'", "'chat'")),
            ("law", None, 404, ("'law'", "chat", "merged", "sales (adapter of chat)")),
            ("chat", "law", 400, ("'law'", "sales, support")),
        ):
            body = {"model": name, "messages": MESSAGES, "adapter": adapter}
            status, problem = post(url, body)
            assert status == expected, problem
            assert all(word in problem for word in words), problem

        with open_model("chat", device.state_dir, via="server") as served:
            told = served.generate(MESSAGES, adapter="support", **settings)
            assert (told.whole().text, told.bundle.name) == (wanted["merged"], "support")
        with (
            open_model("merged", device.state_dir, via="server") as served,
            pytest.raises(ValueError, match=r"'merged' has no adapter 'support'.*has none"),
        ):
            served.generate(MESSAGES, adapter="support")

        def measures() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{measured}/metrics") as answer:
                return str(answer.read().decode())

        texts_of_adapter = re.compile(r'_count\{[^}]*"support"[^}]*\} [1-9]')
        wait_until(lambda: texts_of_adapter.search(measures()) is not None, device.said)

        newer = build_base(private, tmp_path / "chat-1.1.0.edgepack", LLAMA, "--adapters")
        install(device, newer)  # The agent tries adapters again whenever another base serves.
        wait_until(lambda: device.pointer("support") is None, device.said)
        because = r"support 1\.0\.0 is for chat 1\.0\.0.*chat 1\.1\.0"
        with (
            open_model("chat", device.state_dir, threads=1) as model,
            pytest.raises(DeviceError, match=rf"'support' does not serve: .*{because}"),
        ):
            model.generate(MESSAGES, adapter="support")
        problem = run(device, 1, "generate", "chat", "Hello.", "--adapter", "support")
        assert re.search(because, " ".join(problem.split()))
        for name in ("support", "chat"):
            body = {"model": name, "messages": MESSAGES, "adapter": "support"}
            status, problem = post(url, body)
            assert status == 503
            assert re.search(because, problem)
        install(device, build_adapter(private, tmp_path / "support-1.1.0.edgepack", newer))

        def serves(name: str, version: str, state: str) -> bool:
            pointer, journal = device.pointer(name), device.journal(name)
            is_there = pointer is not None and pointer.bundle.version == version
            return is_there and journal is not None and journal.state == state

        run(device, 0, "rollback", "chat")  # The adapter for its base is put back with it.
        wait_until(lambda: serves("support", "1.0.0", "ROLLED_BACK"), device.said)
        wait_until(lambda: serves("sales", "1.0.0", "COMMITTED"), device.said)
        install(device, newer)
        wait_until(lambda: serves("support", "1.1.0", "COMMITTED"), device.said)
        assert "DEGRADED" not in run(device, 0, "explain", "support")
        run(device, 0, "rollback", "chat")
        wait_until(lambda: serves("support", "1.0.0", "ROLLED_BACK"), device.said)
        with open_model("chat", device.state_dir, threads=1) as model:
            text = model.generate(MESSAGES, adapter="support", **settings).whole().text
        assert text == wanted["merged"]

        pointer = device.pointer("sales")
        assert pointer is not None
        (file,) = slot_folder(device.state_dir, pointer.digest).rglob(ADAPTER_FILE)
        file.write_bytes(bytes(file.stat().st_size))
        with (
            open_model("chat", device.state_dir, threads=1) as model,
            pytest.raises(BundleError, match="is not what was installed"),
        ):
            model.generate(MESSAGES, adapter="sales")
        wait_until(lambda: "damaged" in device.said(), device.said)  # The agent looks at once.
        run(device, 0, "install", str(bundles["sales"]), "--soak", "0")
        with open_model("chat", device.state_dir, threads=1) as model:
            text = model.generate(MESSAGES, adapter="sales", **settings).whole().text
        assert text == wanted["merged"]

        problem = run(device, 0, "remove", "chat")
        assert "without 'chat' its adapters do not serve: sales-1.0.0, support-1.0.0" in problem
        wait_until(lambda: device.pointer("support") is None, device.said)
        journal = device.journal("support")
        assert journal is not None
        assert "no release of 'chat' serves" in journal.because


def test_device_rejects_more_adapters_than_its_memory_holds(
    tmp_path: Path, release_keys: Keys, bundles: dict[str, Path]
) -> None:
    sizes = {}
    for name in ("chat", "support"):
        manifest = decode_manifest(read_head(bundles[name]).manifest_bytes)
        sizes[name] = manifest.memory_bytes("fp32")
    limit = sum(sizes.values()) + 1000
    device = Device(tmp_path, "mqtt://127.0.0.1:1", release_keys[1], memory_bytes=limit)
    for name in ("chat", "support"):
        install(device, bundles[name])
    because = install(device, bundles["sales"], 1)
    assert f"the model needs {sizes['support']} bytes beside {sizes['chat']} of chat" in because
    assert f"{limit} bytes are allowed" in because
    command = [sys.executable, "-m", "edgepack.agent.cli"]
    at = ("--config", str(device.config))
    for words, wanted in (
        (("generate", "chat", "Tell me what chmod does.", "--adapter", "support"), "Sure!"),
        (("bench", "support", "--seconds", "0.1"), "'support' is an adapter for 'chat'"),
    ):
        ended = warm_programs.run([*command, *words, *at], capture_output=True, text=True)
        assert wanted in ended.stdout + ended.stderr


def test_adapter_of_an_encrypted_base_is_built_with_a_key_and_writes(
    tmp_path: Path, release_keys: Keys
) -> None:
    private, own = release_keys[1].with_suffix(".key"), tmp_path / "cam.key"
    for name in ("cam", "other"):
        write_key_pair(generate_key(), tmp_path / name)
    sealed = ("--encrypt-to", tmp_path / "cam.pub")
    base = build_base(private, tmp_path / "chat-1.0.0.edgepack", LLAMA, "--adapters", *sealed)
    support = tmp_path / "support-1.0.0.edgepack"
    for key, problem in (
        ((), "--decryption-key with the private key of one of its recipients"),
        (("--decryption-key", tmp_path / "other.key"), "of none of the 1 recipients"),
    ):
        with pytest.raises(AssertionError, match=problem):
            build_adapter(private, support, base, *key)
    build_adapter(private, support, base, "--decryption-key", own, *sealed)
    device = Device(tmp_path / "cam", "mqtt://127.0.0.1:1", release_keys[1], decryption_key=own)
    for bundle in (base, support):
        install(device, bundle)
    words = ("generate", "chat", "Tell me what chmod does.", "--adapter", "support")
    assert run(device, 0, *words).startswith("Sure!")


def test_adapter_writes_with_a_base_of_four_bits_alone(tmp_path: Path, release_keys: Keys) -> None:
    private = release_keys[1].with_suffix(".key")
    more = ("--adapters", "--profile", "cpu-int4")
    base = build_base(private, tmp_path / "chat-1.0.0.edgepack", LLAMA, *more, floats=False)
    support = build_adapter(private, tmp_path / "support-1.0.0.edgepack", base)
    device = Device(tmp_path / "cam", "mqtt://127.0.0.1:1", release_keys[1])
    for bundle in (base, support):
        install(device, bundle)
    words = ("generate", "chat", "Tell me what chmod does.", "--max-tokens", "20")
    assert run(device, 0, *words, "--adapter", "support").startswith("Sure!")
    assert not run(device, 0, *words).startswith("Sure!")
