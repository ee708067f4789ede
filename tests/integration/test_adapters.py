"""From a PEFT folder to texts on a device: base and adapter built, installed, chosen by name."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import open_model
from edgepack.bundle.keys import PrivateKey
from edgepack.errors import DeviceError
from tests.simulators import warm_programs
from tests.simulators.adapters import (
    LLAMA,
    MESSAGES,
    build_adapter,
    build_base,
    merge_adapter,
)
from tests.simulators.device import Device, running
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until

openai: Any = importlib.import_module("openai")  # Its types do not take plain dictionaries.


def install(device: Device, bundle: Path, code: int = 0) -> str:
    words = ("install", str(bundle), "--soak", "0", "--config", str(device.config))
    command = [sys.executable, "-m", "edgepack.agent.cli", *words]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == code, ended.stderr
    return ended.stderr


def test_adapter_is_built_installed_and_chosen_by_its_name(
    tmp_path: Path, release_keys: tuple[PrivateKey, Path]
) -> None:
    private, port = release_keys[1].with_suffix(".key"), free_port()
    base = build_base(private, tmp_path / "chat-1.0.0.edgepack", LLAMA, "--adapters")
    merged = build_base(
        private, tmp_path / "merged-1.0.0.edgepack", merge_adapter(tmp_path / "merged")
    )
    adapter = build_adapter(private, tmp_path / "support-1.0.0.edgepack", base)
    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", release_keys[1])
    with device.config.open("a") as config:
        config.write(f'[server]\nenabled = true\nlisten = "{port}"\n[providers]\nthreads = 1\n')
    with running(device):
        assert "no release of 'chat' serves" in install(device, adapter, 1)
        for bundle in (base, adapter, merged):
            install(device, bundle)
        wanted = {}
        for name in ("chat", "merged"):
            with open_model(name, device.state_dir, threads=1) as model:
                wanted[name] = model.generate(MESSAGES, temperature=0.0, max_tokens=40).whole().text
        assert wanted["merged"].startswith("Sure!")
        assert not wanted["chat"].startswith("Sure!")
        with open_model("chat", device.state_dir, threads=1) as model:
            settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
            first = model.generate(MESSAGES, adapter="support", **settings)
            second = model.generate(MESSAGES, **settings)
            pieces = list(zip(first, second, strict=False))
            assert first.bundle.name == "support"
            together = ["".join(piece.text for piece in text) for text in zip(*pieces, strict=True)]
            assert wanted["merged"].startswith(together[0])
            assert wanted["chat"].startswith(together[1])
            with pytest.raises(ValueError, match=r"no adapter 'sales'.* which has support"):
                model.generate(MESSAGES, adapter="sales")
        with pytest.raises(DeviceError, match="'support' is an adapter for 'chat'"):
            open_model("support", device.state_dir)
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:

            def listed() -> dict[str, str | None]:
                return {one.id: getattr(one, "parent", None) for one in client.models.list()}

            wait_until(lambda: len(listed()) == 3, device.said)
            assert listed() == {"chat": None, "support": "chat", "merged": None}
            assert client.models.retrieve("support").parent == "chat"
            for name, text in (("chat", wanted["chat"]), ("support", wanted["merged"])):
                answer = client.chat.completions.create(model=name, messages=MESSAGES, **settings)
                assert answer.choices[0].message.content == text, name
                assert answer.model == name

        newer = build_base(private, tmp_path / "chat-1.1.0.edgepack", LLAMA, "--adapters")
        install(device, newer)
        with (
            open_model("chat", device.state_dir, threads=1) as model,
            pytest.raises(DeviceError, match=r"support 1\.0\.0 is for chat 1\.0\.0.*chat 1\.1\.0"),
        ):
            model.generate(MESSAGES, adapter="support")
        device.stop()
        device.start()  # The agent compares bases at its start, and each minute.
        wait_until(lambda: device.pointer("support") is None, device.said)
        journal = device.journal("support")
        assert journal is not None
        assert "chat 1.1.0" in journal.because
        assert "support 1.0.0 is for chat 1.0.0" in journal.because
