"""A tool on a task: makes a model in a child process and returns the cost."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.packager.contestants import OWN, Contestant
from benchmarks.packager.environments import Environment
from benchmarks.packager.measured_child import Measured, last_words, run_measured
from benchmarks.packager.records import Outcome, Prediction, Record, Store, Subject, cache_key
from benchmarks.peers.arguments import EXIT_REFUSED, TOLD_FILE
from benchmarks.tasks.places import CACHE, ROOT
from benchmarks.tasks.task import Part, Task
from edgepack.decoding import decode_json

_SETTINGS = {
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "OLIVE_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "",
}
"""What keeps the tools from the network, their last words readable, and Python's compiled files."""

_BECAUSE_LENGTH = 400


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms that hold for everybody in a run.

    Attributes:
        part: The labelled set that judges.
        quick: Time latencies for a shorter while.
        time_limit_s, memory_limit_bytes: For making a model.
        cpu: The machine's CPU.
        store: Where records are kept.
    """

    part: Part
    quick: bool
    time_limit_s: float
    memory_limit_bytes: int
    cpu: str
    store: Store


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task with its calibration samples as files."""

    task: Task
    model_sha256: str
    calibration_folder: Path


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Start of a measurement, with the machine's load."""

    at: str
    load_average: float

    @classmethod
    def now(cls) -> "Beginning":
        """Return the current moment."""
        return cls(
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            load_average=round(os.getloadavg()[0], 2),
        )


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """A runner's note on its model, see `TOLD_FILE`."""

    note: str = ""
    candidates: int | None = None
    prediction: Prediction | None = None


def prepare_task(task: Task, calibration_folder: Path) -> PreparedTask:
    """Read the identity of a task's model."""
    digest = hashlib.sha256(task.model.read_bytes()).hexdigest()
    return PreparedTask(
        task=task, model_sha256=digest, calibration_folder=calibration_folder.resolve()
    )


def subject_of(
    contestant: Contestant, environment: Environment | None, prepared: PreparedTask, terms: Terms
) -> Subject:
    """Return the identity of a measurement.

    Args:
        contestant: The tool and its setting.
        environment: The tool's environment; None if not installable.
        prepared: The task.
        terms: The run's terms.
    """
    return Subject(
        peer=contestant.peer,
        setting=contestant.setting,
        version=environment.version if environment else "none",
        task=prepared.task.name,
        model_sha256=prepared.model_sha256,
        part=terms.part,
        cpu=terms.cpu,
        edition=prepared.task.edition,
    )


def model_file(work: Path) -> Path:
    """Return the path of the model that `make` writes."""
    return work / "made" / "model.onnx"


def make(
    contestant: Contestant,
    prepared: PreparedTask,
    environment: Environment,
    terms: Terms,
    work: Path,
) -> Record:
    """Make a contestant's model, `model_file(work)`.

    Args:
        contestant: The tool and its setting.
        prepared: The task.
        environment: Where the tool is installed.
        terms: The run's terms.
        work: Folder for the model and further files of the tool.

    Returns:
        The cost, with the outcome `made` if there is a model.
    """
    began = Beginning.now()
    subject = subject_of(contestant, environment, prepared, terms)
    log, output = work / "log.txt", model_file(work)
    output.parent.mkdir(parents=True)
    made = run_measured(
        _command(contestant, prepared, environment, output),
        folder=work,  # some tools leave files where they are started
        log=log,
        time_limit_s=terms.time_limit_s,
        memory_limit_bytes=terms.memory_limit_bytes,
        environment=child_environment(),
    )
    _keep_log(log, f"{cache_key(subject)}.txt")
    outcome = outcome_of(made, is_written=output.exists())
    told = _read_told(output)
    return Record(
        subject=subject,
        outcome=outcome,
        because=shortened(last_words(log)) if outcome in {"crashed", "refused"} else "",
        note=told.note,
        candidates=told.candidates,
        prediction=told.prediction,
        wall_s=made.wall_s,
        cpu_s=made.cpu_s,
        peak_bytes=made.peak_bytes,
        others_s=made.others_s,
        measured_at=began.at,
        load_average=began.load_average,
    )


def outcome_of(made: Measured, *, is_written: bool) -> Outcome:
    """Return the outcome of making a model; `made` if there is a model to judge."""
    if made.ending != "ended":
        return made.ending
    if made.exit_code == EXIT_REFUSED:
        return "refused"
    return "made" if made.exit_code == 0 and is_written else "crashed"


def child_environment() -> dict[str, str]:
    """Return the environment variables of a measured child."""
    return {**os.environ, **_SETTINGS, "PYTHONPATH": str(ROOT)}


def shortened(because: str) -> str:
    """Shorten a reason to the length in a record."""
    return because[:_BECAUSE_LENGTH]


def work_root() -> Path:
    """Return the parent folder of temporary folders of a measurement."""
    folder = CACHE / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _command(
    contestant: Contestant, prepared: PreparedTask, environment: Environment, output: Path
) -> Sequence[str | Path]:
    task = prepared.task
    command: list[str | Path] = [environment.python, "-m", f"benchmarks.peers.{contestant.peer}"]
    command += ["--model", task.model, "--calibration-folder", prepared.calibration_folder]
    command += ["--setting", contestant.setting, "--output", output]
    command += ["--metric", f"benchmarks.tasks.{task.name}:score_development"]
    if task.declared and contestant.peer == OWN:
        config = output.with_name("edgepack.toml")
        config.write_text(task.declared)
        command += ["--config", config]
    if contestant.shapes:
        for name, shape in task.shapes.items():
            command += ["--shape", f"{name}={','.join(map(str, shape))}"]
    return command


def _read_told(output: Path) -> _Told:
    file = output.with_name(TOLD_FILE)
    return decode_json(file.read_bytes(), _Told) if file.exists() else _Told()


def _keep_log(log: Path, name: str) -> None:
    folder = CACHE / "results" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, folder / name)
