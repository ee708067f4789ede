"""Texts of another kind are seen as drift: a folder is built, installed, and serves texts."""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import Model, open_model
from tests.integration.fleet.conftest import Mosquitto, Serve, StartAgent
from tests.integration.fleet.drifting import DriftingDevice
from tests.simulators import warm_programs

FOLDER = Path(__file__).parents[2] / "huggingface"
PROMPTS = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text().splitlines()]


def build(key: Path, output: Path) -> Path:
    words = ("build", FOLDER / "llama", "--profile", "fp32", "--name", "chat")
    given = ("--calibration", FOLDER / "prompts.jsonl", "--key", key, "--output", output)
    command = [sys.executable, "-m", "edgepack.cli", *map(str, (*words, *given))]
    done = warm_programs.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return output


def expected_prompts() -> Iterator[Any]:
    """Yield prompts like those of the build, without end."""
    return cycle([line.get("messages") or line["prompt"] for line in PROMPTS])


def other_prompts() -> Iterator[Any]:
    """Yield prompts of another kind: long, and of numbers."""
    return cycle([" ".join(str(first * second) for second in range(55)) for first in range(40)])


def test_texts_of_another_kind_are_shown_as_drift_on_the_device_and_in_the_fleet(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    key_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    device = DriftingDevice(fleet, start_agent, tmp_path, monkeypatch)
    device.commit(build(key_prefix.with_suffix(".key"), tmp_path / "chat-1.0.0.edgepack"))

    def write(model: Model, prompts: Iterable[Any], count: int) -> None:
        for number, prompt in zip(range(count), prompts, strict=False):
            model.generate(prompt, max_tokens=16).whole()
            if number % 20 == 0:
                model._serving.record.sketches.snapshot()

    with open_model("chat", device.state, threads=1, poll_s=0.1) as model:
        expected, others = expected_prompts(), other_prompts()

        def texts_seen() -> int:
            write(model, expected, 20)
            drift = device.drift()
            return 0 if drift is None else drift.inferences

        fleet.wait_until(lambda: texts_seen() >= 500, "the fleet has the drift of texts")
        (line,) = device.status()
        assert "changed" not in line
        drift = device.drift()
        assert drift is not None
        assert drift.difference < 0.5, drift

        def is_changed() -> bool:
            write(model, others, 20)
            return any("changed: share of token group" in line for line in device.status())

        fleet.wait_until(is_changed, "the device shows a change")
    fleet.wait_until(
        lambda: (
            (drift := device.drift()) is not None and any(one.is_change for one in drift.features)
        ),
        "the fleet has the change",
    )
    assert "changed: share of token group" in " ".join(device.shown().split())
    assert "changed: share of token group" in device.page()
