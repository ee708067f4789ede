"""An adapter is rolled out to a fleet of three devices with its base, and rolled back."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edgepack.agent import open_model
from edgepack.fleet.documents.rollouts import RolloutSettings
from tests.integration.fleet.conftest import CAMERAS, Serve, StartAgent, edgepack
from tests.simulators.adapters import (
    LLAMA,
    MESSAGES,
    build_adapter,
    build_base,
    copy_adapter,
    read_adapter,
)

DEVICES = ("cam-1", "cam-2", "cam-3")


def versions(fleet: Any, model: str) -> dict[str, str]:
    return {
        device.device: next(
            (one.active.version for one in device.models if one.name == model and one.active), ""
        )
        for device in fleet.client.devices()
    }


def write(folder: Path, adapter: str | None) -> tuple[str, str]:
    """Return the text of a device, and the version that wrote it."""
    with (
        open_model("chat", folder / "state", threads=1) as model,
        model.generate(MESSAGES, adapter=adapter, temperature=0.0, max_tokens=20) as text,
    ):
        return "".join(piece.text for piece in text), text.bundle.version


class Streams:
    """Texts with an adapter, one after the other on each device, until `end`."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._is_over = threading.Event()
        self.written: list[tuple[str, str]] = []
        self._pool = ThreadPoolExecutor(len(folders))
        self._running = [self._pool.submit(self._write, folder) for folder in folders]

    def _write(self, folder: Path) -> None:
        with open_model("chat", folder / "state", threads=1) as model:
            while not self._is_over.is_set():
                settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}
                with model.generate(MESSAGES, adapter="support", **settings) as text:
                    pieces = [piece.text for piece in text]
                    self.written.append((text.bundle.version, "".join(pieces)))
                    time.sleep(0.02)

    def end(self) -> dict[str, set[str]]:
        """Return the different texts of each version; raise what a stream raised."""
        self._is_over.set()
        for one in self._running:
            one.result()
        self._pool.shutdown()
        return {
            version: {text for other, text in self.written if other == version}
            for version, _ in self.written
        }


def test_adapter_is_rolled_out_to_a_fleet_of_three_and_rolled_back(
    tmp_path: Path, key_prefix: Path, serve: Serve, start_agent: StartAgent
) -> None:
    key = key_prefix.with_suffix(".key")
    base = build_base(key, tmp_path / "chat-1.0.0.edgepack", LLAMA, "--adapters")
    other = build_base(key, tmp_path / "chat-2.0.0.edgepack", LLAMA, "--adapters")
    releases = [
        build_adapter(key, tmp_path / f"support-{version}.edgepack", own)
        for version, own in (("1.0.0", base), ("2.0.0", other))
    ]
    longer = {name: tensor * 1.5 for name, tensor in read_adapter().items()}
    changed = copy_adapter(tmp_path / "changed", longer)
    newer = tmp_path / "support-1.1.0.edgepack"
    releases.insert(1, build_adapter(key, newer, base, adapter=changed))
    fleet = serve()
    for device in DEVICES:
        start_agent(fleet, device)
    fleet.wait_until(lambda: fleet.info().online == len(DEVICES), "the agents are online")

    for bundle in (base, *releases[:2]):
        if bundle == releases[1]:
            streams = Streams([tmp_path / device for device in DEVICES])
        name = fleet.roll_out(bundle, to=CAMERAS, deadline_s=400.0)
        view = fleet.wait_for(name, "FINISHED", "PAUSED")
        assert view.counts == {"COMMITTED": len(DEVICES)}, view
    assert versions(fleet, "support") == dict.fromkeys(DEVICES, "1.1.0")
    for device in DEVICES:
        text, version = write(tmp_path / device, "support")
        assert (text[:5], version) == ("Sure!", "1.1.0")
        assert write(tmp_path / device, None)[1] == "1.0.0"

    shown = edgepack(
        fleet, "rollout", "start", str(releases[2]), "--group", "cameras", "--dry-run"
    ).stdout
    assert "the adapter is for another release of its base" in shown
    assert "it is for chat 2.0.0" in " ".join(shown.split())
    foreign = fleet.roll_out(releases[2], to=CAMERAS, deadline_s=400.0)
    view = fleet.wait_for(foreign, "PAUSED")
    failed = next(one for one in view.assignments if one.state == "FAILED")
    assert "support 2.0.0 is for chat 2.0.0" in failed.because
    assert "chat 1.0.0" in failed.because
    fleet.client.abort_rollout(foreign)

    settings = RolloutSettings(waves="100%", soak_s=0.2, deadline_s=400.0)
    (back,) = fleet.client.rollback(name, settings=settings)
    view = fleet.wait_for(back.rollout, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": len(DEVICES)}, view
    assert versions(fleet, "support") == dict.fromkeys(DEVICES, "1.0.0")
    texts = streams.end()  # No text was cut, and each is that of its own release.
    assert {version: len(found) for version, found in texts.items()} == {"1.0.0": 1, "1.1.0": 1}
    assert texts["1.0.0"] != texts["1.1.0"]
    late = "cam-4"  # Both orders come at once: the adapter waits for its base.
    start_agent(fleet, late)
    fleet.wait_until(lambda: versions(fleet, "support").get(late) == "1.0.0", "the late one has it")
    for device in (*DEVICES, late):
        text, version = write(tmp_path / device, "support")
        assert (text[:5], version) == ("Sure!", "1.0.0")
