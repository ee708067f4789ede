"""Measurement of a contestant on a task: make the model in a child process, then judge the model in
another.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.packager import race
from benchmarks.packager.contestants import (
    CONTESTANTS,
    NPU_TARGETS,
    OWN,
    SIMULATED_TARGETS,
    Contestant,
)
from benchmarks.packager.environments import EnvironmentFailedError, prepare
from benchmarks.packager.in_turn import make_in_turn
from benchmarks.packager.judge import (
    QUICK_TIMED_S,
    TIMED_S,
    Verdict,
    loaded_marker,
    model_files,
)
from benchmarks.packager.making import (
    Beginning,
    PreparedTask,
    Terms,
    child_environment,
    make,
    model_file,
    shortened,
    subject_of,
    work_root,
)
from benchmarks.packager.measured_child import last_words, run_measured
from benchmarks.packager.records import FLOAT, Cost, Race, Record, Subject, name_of
from benchmarks.packager.table import is_kept
from benchmarks.peers.arguments import BUNDLE_FOLDER
from benchmarks.tasks.places import ROOT
from benchmarks.tasks.task import Task
from edgepack.decoding import decode_json

_JUDGE_LIMIT_S = 900.0


def measure_float(prepared: PreparedTask, terms: Terms) -> Record:
    """Judge the float model itself, next to itself."""
    subject = Subject(
        peer=FLOAT,
        setting="-",
        version="-",
        task=prepared.task.name,
        model_sha256=prepared.model_sha256,
        part=terms.part,
        cpu=terms.cpu,
        edition=prepared.task.edition,
    )
    if kept := terms.store.read(subject):
        return kept
    began = Beginning.now()
    unjudged = Record(
        subject=subject, outcome="made", measured_at=began.at, load_average=began.load_average
    )
    with tempfile.TemporaryDirectory(dir=work_root()) as work:
        model = prepared.task.model
        record = _judged(unjudged, model, prepared.task, terms, Path(work), for_npu=False)
    terms.store.keep(record)
    return record


def measure(contestant: Contestant, prepared: PreparedTask, terms: Terms) -> Record:
    """Measure a contestant, or read the earlier measurement."""
    try:
        environment = prepare(contestant.peer)
    except EnvironmentFailedError as error:
        began = Beginning.now()
        return Record(
            subject=subject_of(contestant, None, prepared, terms),
            outcome="not installed",
            because=shortened(str(error)),
            measured_at=began.at,
            load_average=began.load_average,
        )
    if kept := terms.store.read(subject_of(contestant, environment, prepared, terms)):
        return kept
    with tempfile.TemporaryDirectory(dir=work_root()) as folder:
        work = Path(folder)
        if contestant.peer == OWN:
            record, work = make_in_turn(contestant, prepared, environment, terms, work)
        else:
            record = make(contestant, prepared, environment, terms, work)
        if record.outcome == "made":
            record = _look_closer(contestant, record, prepared, terms, work)
    terms.store.keep(record)
    return record


def _look_closer(
    contestant: Contestant, record: Record, prepared: PreparedTask, terms: Terms, work: Path
) -> Record:
    """Judge a contestant's model, and run a simulator alone if the build used a simulator."""
    model = model_file(work)
    if contestant.peer == OWN and contestant.target in SIMULATED_TARGETS:
        record = msgspec.structs.replace(record, simulator=_simulate(prepared, terms, work))
    for_npu = contestant.target in NPU_TARGETS
    record = _judged(record, model, prepared.task, terms, work, for_npu=for_npu)
    if contestant.target == "cpu" and record.verdict is not None:
        terms.store.keep_model(record.subject, model_files(model))
    return record


def _simulate(prepared: PreparedTask, terms: Terms, work: Path) -> Cost | None:
    """Return the cost of the simulator alone; None after a failure or a limit."""
    bundle = model_file(work).with_name(BUNDLE_FOLDER)
    ran = run_measured(
        [
            *(sys.executable, "-m", "benchmarks.packager.simulator", "--bundle", bundle),
            *("--calibration-folder", prepared.calibration_folder),
        ],
        folder=work,
        log=work / "simulator.txt",
        time_limit_s=terms.time_limit_s,
        memory_limit_bytes=terms.memory_limit_bytes,
        environment=child_environment(),
    )
    if ran.exit_code != 0:
        return None
    return Cost(wall_s=ran.wall_s, cpu_s=ran.cpu_s, peak_bytes=ran.peak_bytes)


def race_kept(
    prepared: PreparedTask, float_record: Record, records: Sequence[Record], terms: Terms
) -> Race | None:
    """Race the models for the CPU that keep the metric, or read the earlier race.

    Args:
        prepared: The task.
        float_record: The float model's.
        records: Measurements of the task.
        terms: The run's terms.
    """
    subjects = kept_on_cpu(float_record, records)
    if known := terms.store.read_race(prepared.task.name, subjects):
        return known
    models = {name_of(subject): terms.store.model(subject) for subject in subjects}
    entrants = {name: path for name, path in models.items() if path is not None}
    if not entrants:
        return None
    began = Beginning.now()
    timed_s = QUICK_TIMED_S if terms.quick else race.TIMED_S
    with tempfile.TemporaryDirectory(dir=work_root()) as work:
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
    """Return the models for the CPU that keep the float model's metric."""
    for_cpu = {(entry.peer, entry.setting) for entry in CONTESTANTS if entry.target == "cpu"}
    return [
        record.subject
        for record in records
        if (record.subject.peer, record.subject.setting) in for_cpu
        and record.subject.task == float_record.subject.task
        and is_kept(record, float_record)
    ]


def _judged(
    record: Record, model: Path, task: Task, terms: Terms, work: Path, *, for_npu: bool
) -> Record:
    """Return the record with the verdict on its model."""
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
        verdict = decode_json(output.read_bytes(), Verdict)
        return msgspec.structs.replace(record, outcome="judged", verdict=verdict)
    because = last_words(log) if judging.ending == "ended" else f"judging was {judging.ending}"
    return msgspec.structs.replace(
        record,
        outcome="does not run" if loaded_marker(output).exists() else "does not load",
        because=shortened(because),
    )
