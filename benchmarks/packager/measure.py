"""One contestant on one task: make the model in a child process, then judge it in another."""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.packager import race
from benchmarks.packager.contestants import CONTESTANTS, NPU_TARGETS, Contestant
from benchmarks.packager.environments import Environment, EnvironmentFailedError, prepare
from benchmarks.packager.judge import (
    QUICK_TIMED_S,
    TIMED_S,
    Verdict,
    loaded_marker,
    model_files,
)
from benchmarks.packager.measured_child import Measured, last_words, run_measured
from benchmarks.packager.records import (
    FLOAT,
    Outcome,
    Race,
    Record,
    Store,
    Subject,
    cache_key,
    name_of,
)
from benchmarks.packager.table import is_kept
from benchmarks.peers.arguments import EXIT_REFUSED, TOLD_FILE
from benchmarks.tasks.places import CACHE, ROOT
from benchmarks.tasks.task import Part, Task

_SETTINGS = {
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "OLIVE_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "",
}
"""What keeps the tools from the network, their last words readable, and Python's compiled files."""

_JUDGE_LIMIT_S = 900.0
_BECAUSE_LENGTH = 400


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms that hold for everybody in a run.

    Attributes:
        part: The labelled set that judges.
        quick: Time latencies for a shorter while.
        time_limit_s, memory_limit_bytes: For making one model.
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
class _Beginning:
    """When a measurement began, and how busy the machine was."""

    at: str
    load_average: float

    @classmethod
    def now(cls) -> "_Beginning":
        return cls(
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            load_average=round(os.getloadavg()[0], 2),
        )


@dataclass(frozen=True, kw_only=True)
class _Judgement:
    """See `Record`."""

    outcome: Outcome
    because: str = ""
    verdict: Verdict | None = None


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner told of its model, see `TOLD_FILE`."""

    note: str = ""
    candidates: int | None = None


def prepare_task(task: Task, calibration_folder: Path) -> PreparedTask:
    """Reads what identifies a task's model."""
    digest = hashlib.sha256(task.model.read_bytes()).hexdigest()
    return PreparedTask(
        task=task, model_sha256=digest, calibration_folder=calibration_folder.resolve()
    )


def measure_float(prepared: PreparedTask, terms: Terms) -> Record:
    """Judges the float model itself, beside itself."""
    subject = _subject(prepared, terms, peer=FLOAT, setting="-", version="-")
    if kept := terms.store.read(subject):
        return kept
    began = _Beginning.now()
    with tempfile.TemporaryDirectory(dir=_work_root()) as work:
        judgement = _judge(prepared.task.model, prepared.task, terms, Path(work), for_npu=False)
    record = _record(subject, began, judgement)
    terms.store.keep(record)
    return record


def measure(contestant: Contestant, prepared: PreparedTask, terms: Terms) -> Record:
    """Measures a contestant, or reads what was measured before."""
    began = _Beginning.now()
    try:
        environment = prepare(contestant.peer)
    except EnvironmentFailedError as error:
        subject = _subject(prepared, terms, contestant.peer, contestant.setting, version="none")
        return _record(subject, began, _Judgement(outcome="not installed", because=str(error)))
    subject = _subject(
        prepared, terms, contestant.peer, contestant.setting, version=environment.version
    )
    if kept := terms.store.read(subject):
        return kept
    with tempfile.TemporaryDirectory(dir=_work_root()) as folder:
        record = _make_and_judge(contestant, prepared, environment, terms, subject, Path(folder))
    terms.store.keep(record)
    return record


def _make_and_judge(
    contestant: Contestant,
    prepared: PreparedTask,
    environment: Environment,
    terms: Terms,
    subject: Subject,
    work: Path,
) -> Record:
    began = _Beginning.now()
    log, output = work / "log.txt", work / "made" / "model.onnx"
    output.parent.mkdir()
    made = run_measured(
        _command(contestant, prepared, environment, output),
        folder=work,  # some tools leave files where they are started
        log=log,
        time_limit_s=terms.time_limit_s,
        memory_limit_bytes=terms.memory_limit_bytes,
        environment={**os.environ, **_SETTINGS, "PYTHONPATH": str(ROOT)},
    )
    _keep_log(log, f"{cache_key(subject)}.txt")
    outcome = outcome_of(made, is_written=output.exists())
    judgement = _Judgement(outcome=outcome)
    if outcome == "judged":
        for_npu = contestant.target in NPU_TARGETS
        judgement = _judge(output, prepared.task, terms, work, for_npu=for_npu)
        if contestant.target == "cpu" and judgement.verdict is not None:
            terms.store.keep_model(subject, model_files(output))
    elif outcome in {"crashed", "refused"}:
        judgement = _Judgement(outcome=outcome, because=last_words(log))
    return _record(subject, began, judgement, made=made, told=_read_told(output))


def _read_told(output: Path) -> _Told:
    file = output.with_name(TOLD_FILE)
    return msgspec.json.decode(file.read_bytes(), type=_Told) if file.exists() else _Told()


def race_kept(
    prepared: PreparedTask, float_record: Record, records: Sequence[Record], terms: Terms
) -> Race | None:
    """Races the models for the CPU that keep the metric, or reads the race that was run before.

    Args:
        prepared: The task.
        float_record: The float model's.
        records: What was measured of the task.
        terms: The run's terms.
    """
    subjects = kept_on_cpu(float_record, records)
    if known := terms.store.read_race(prepared.task.name, subjects):
        return known
    models = {name_of(subject): terms.store.model(subject) for subject in subjects}
    entrants = {name: path for name, path in models.items() if path is not None}
    if not entrants:
        return None
    began = _Beginning.now()
    timed_s = QUICK_TIMED_S if terms.quick else race.TIMED_S
    with tempfile.TemporaryDirectory(dir=_work_root()) as work:
        medians = race.race(
            prepared.task,
            {FLOAT: prepared.task.model, **entrants},
            Path(work),
            timed_s=timed_s,
        )
    if medians is None:
        return None
    result = Race(task=prepared.task.name, measured_at=began.at, latencies_ms=medians)
    terms.store.keep_race(result, subjects)
    return result


def kept_on_cpu(float_record: Record, records: Sequence[Record]) -> list[Subject]:
    """What was made for the CPU and keeps the float model's metric."""
    for_cpu = {(entry.peer, entry.setting) for entry in CONTESTANTS if entry.target == "cpu"}
    return [
        record.subject
        for record in records
        if (record.subject.peer, record.subject.setting) in for_cpu
        and record.subject.task == float_record.subject.task
        and is_kept(record, float_record)
    ]


def outcome_of(made: Measured, *, is_written: bool) -> Outcome:
    """How making a model ended; `judged` where there is a model to judge."""
    if made.ending != "ended":
        return made.ending
    if made.exit_code == EXIT_REFUSED:
        return "refused"
    return "judged" if made.exit_code == 0 and is_written else "crashed"


def _command(
    contestant: Contestant, prepared: PreparedTask, environment: Environment, output: Path
) -> Sequence[str | Path]:
    task = prepared.task
    command: list[str | Path] = [environment.python, "-m", f"benchmarks.peers.{contestant.peer}"]
    command += ["--model", task.model, "--calibration-folder", prepared.calibration_folder]
    command += ["--setting", contestant.setting, "--output", output]
    command += ["--metric", f"benchmarks.tasks.{task.name}:score_development"]
    if contestant.shapes:
        for name, shape in task.shapes.items():
            command += ["--shape", f"{name}={','.join(map(str, shape))}"]
    return command


def _judge(model: Path, task: Task, terms: Terms, work: Path, *, for_npu: bool) -> _Judgement:
    output, log = work / "verdict.json", work / "judge.txt"
    timed_s = QUICK_TIMED_S if terms.quick else TIMED_S
    judging = run_measured(
        [
            *(sys.executable, "-m", "benchmarks.packager.judge", "--task", task.name),
            *("--model", model, "--part", terms.part),
            *("--timed-s", str(timed_s), "--output", output),
            *(["--for-npu"] if for_npu else []),
        ],
        folder=ROOT,
        log=log,
        time_limit_s=_JUDGE_LIMIT_S,
        memory_limit_bytes=terms.memory_limit_bytes,
    )
    if judging.exit_code == 0:
        verdict = msgspec.json.decode(output.read_bytes(), type=Verdict)
        return _Judgement(outcome="judged", verdict=verdict)
    because = last_words(log) if judging.ending == "ended" else f"judging was {judging.ending}"
    is_loaded = loaded_marker(output).exists()
    return _Judgement(outcome="does not run" if is_loaded else "does not load", because=because)


def _record(
    subject: Subject,
    began: _Beginning,
    judgement: _Judgement,
    *,
    made: Measured | None = None,
    told: _Told | None = None,
) -> Record:
    return Record(
        subject=subject,
        outcome=judgement.outcome,
        because=judgement.because[:_BECAUSE_LENGTH],
        note=told.note if told else "",
        candidates=told.candidates if told else None,
        wall_s=made.wall_s if made else None,
        cpu_s=made.cpu_s if made else None,
        peak_bytes=made.peak_bytes if made else None,
        verdict=judgement.verdict,
        measured_at=began.at,
        load_average=began.load_average,
    )


def _subject(
    prepared: PreparedTask, terms: Terms, peer: str, setting: str, version: str
) -> Subject:
    return Subject(
        peer=peer,
        setting=setting,
        version=version,
        task=prepared.task.name,
        model_sha256=prepared.model_sha256,
        part=terms.part,
        cpu=terms.cpu,
        edition=prepared.task.edition,
    )


def _keep_log(log: Path, name: str) -> None:
    folder = CACHE / "results" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(log, folder / name)


def _work_root() -> Path:
    folder = CACHE / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
