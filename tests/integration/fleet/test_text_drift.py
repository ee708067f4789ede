"""Texts of another kind are seen as drift: a folder is built, installed, and serves texts."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent import Model, open_model
from edgepack.agent.serving import following
from edgepack.agent.telemetry import sketches
from edgepack.wire.reports import Drift
from tests.integration.fleet.conftest import CAMERAS, Mosquitto, StartAgent, edgepack
from tests.integration.fleet.dashboard import Visitor
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
    serve: Callable[..., Any],
    start_agent: StartAgent,
    key_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.2)
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)
    fleet = serve("--broker", mosquitto.url)
    place = tmp_path / "cam-1"
    fleet.client.enroll("cam-1", group="cameras", folder=place, state_dir=place / "state")
    with (place / "agent.toml").open("a") as settings:
        settings.write("\n[telemetry]\ninterval_s = 0.2\nheartbeat_s = 1\ndrift_window_s = 0.3\n")
    start_agent(fleet, "cam-1")
    fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
    archive = build(key_prefix.with_suffix(".key"), tmp_path / "chat-1.0.0.edgepack")
    rollout = fleet.roll_out(archive, to=CAMERAS, waves="100%", deadline_s=400.0)
    fleet.wait_for(rollout, "FINISHED")

    def status() -> list[str]:
        words = ("status", "--state-dir", str(place / "state"))
        command = (sys.executable, "-m", "edgepack.agent.cli", *words)
        done = warm_programs.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("drift")]

    def in_fleet() -> Drift | None:
        found: Drift | None = fleet.client.device("cam-1").models[0].drift
        return found

    def write(model: Model, prompts: Iterable[Any], count: int) -> None:
        for number, prompt in zip(range(count), prompts, strict=False):
            model.generate(prompt, max_tokens=16).whole()
            if number % 20 == 0:
                model._serving.record.sketches.snapshot()

    with open_model("chat", place / "state", threads=1, poll_s=0.1) as model:
        expected, others = expected_prompts(), other_prompts()

        def texts_seen() -> int:
            write(model, expected, 20)
            drift = in_fleet()
            return 0 if drift is None else drift.inferences

        fleet.wait_until(lambda: texts_seen() >= 500, "the fleet has the drift of texts")
        (line,) = status()
        assert "changed" not in line
        drift = in_fleet()
        assert drift is not None
        assert drift.difference < 0.5, drift

        def is_changed() -> bool:
            write(model, others, 20)
            return any("changed: share of token group" in line for line in status())

        fleet.wait_until(is_changed, "the device shows a change")
    fleet.wait_until(
        lambda: (drift := in_fleet()) is not None and any(one.is_change for one in drift.features),
        "the fleet has the change",
    )
    shown = edgepack(fleet, "fleet", "devices", "show", "cam-1").stdout
    assert "changed: share of token group" in " ".join(shown.split())
    page = Visitor(fleet.url).log_in((fleet.data / "token").read_text()).get("/devices/cam-1").text
    assert "changed: share of token group" in page
