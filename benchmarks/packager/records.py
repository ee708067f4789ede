"""Measurements, stored on disk so that an interrupted run continues at its position."""

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.packager.host import Host
from benchmarks.packager.judge import Verdict
from benchmarks.tasks.task import Part
from edgepack.decoding import decode_json
from edgepack.durable import write_file

Outcome = Literal[
    "judged",
    "made",
    "refused",
    "crashed",
    "over the time limit",
    "over the memory limit",
    "does not load",
    "does not run",
    "not installed",
]

FLOAT = "float"
"""The peer of the float models' own records, and their name in a race."""

_FORMAT = 3
"""Counts changes of what is measured or how; a record of another format is measured again."""


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of a measurement; equal subjects are measured once.

    Attributes:
        peer, setting, version: The tool; see `Contestant` and `Environment`.
        task: Name of the task.
        model_sha256: Digest of its float model.
        part: The labelled set that judges.
        cpu: The machine's CPU.
        edition: Of the task.
    """

    peer: str
    setting: str
    version: str
    task: str
    model_sha256: str
    part: Part
    cpu: str
    edition: int = 1


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a program; see `Measured`."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    others_s: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A report's prediction of its model, from the given samples.

    Attributes:
        metric, value: Metric of the report, and the value against the float model.
        low: Lower bound of the value, 95 %; None if not reported.
        task_kept: Expected share of the float model's task.
    """

    metric: str
    value: float
    low: float | None = None
    task_kept: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A subject, measured. Later fields are None in older records.

    Attributes:
        subject: The measured subject.
        outcome: The outcome; `made` without a judge.
        because: The tool's last words after a failure, else "".
        note: The runner's note on its model, or "".
        candidates: Number of models that the tool made and compared; None if not reported.
        prediction: For our models, the report's prediction.
        wall_s, cpu_s, peak_bytes, others_s: Cost of making the model; see `Measured`.
        turns: Number of runs; costs are medians over the runs.
        reference: Cost of ONNX Runtime's MinMax on the same task, run right before each of our
            runs.
        simulator: Cost of a bare process that opens and runs the model on the vendor's simulator;
            for our builds with such a simulator.
        verdict: Quality of the model; None without a running model.
        measured_at: RFC 3339, UTC.
        load_average: Load of the machine at the start, over a minute: other programs' work blurs
            times.
    """

    subject: Subject
    outcome: Outcome
    because: str = ""
    note: str = ""
    candidates: int | None = None
    prediction: Prediction | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None
    others_s: float | None = None
    turns: int = 1
    reference: Cost | None = None
    simulator: Cost | None = None
    verdict: Verdict | None = None
    measured_at: str
    load_average: float

    @property
    def cost(self) -> Cost | None:
        """Cost of making the model; None without a model."""
        if self.wall_s is None or self.cpu_s is None or self.peak_bytes is None:
            return None
        return Cost(
            wall_s=self.wall_s,
            cpu_s=self.cpu_s,
            peak_bytes=self.peak_bytes,
            others_s=self.others_s,
        )


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a task that keep the metric on the CPU, timed turn by turn.

    Attributes:
        task: The task.
        measured_at: RFC 3339, UTC.
        latencies_ms: Medians of an inference on a single thread by `name_of`, and of the float
            model.
    """

    task: str
    measured_at: str
    latencies_ms: dict[str, float]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a page: `.bench/results/packager.json`, and `docs/benchmarks/KIND.json`.

    Attributes:
        host: The measuring machine.
        part: The labelled set that judged.
        calibration_count: Samples that everybody calibrated with.
        float_records: Of the float models.
        records: Of the contestants.
        calibrations: Of our calibrators.
        races: See `Race`.
    """

    host: Host
    part: Part
    calibration_count: int
    float_records: tuple[Record, ...]
    records: tuple[Record, ...]
    calibrations: tuple[Record, ...] = ()
    races: tuple[Race, ...] = ()

    def race_of(self, task: str) -> Race | None:
        """Return the race of a task; None without a race."""
        return next((race for race in self.races if race.task == task), None)


def name_of(subject: Subject) -> str:
    """Return the name of a contestant in a race, e.g. `ort static-default`."""
    return f"{subject.peer} {subject.setting}"


def encode_results(results: Results) -> bytes:
    """Return results as JSON, a line a field, so that diffs are small."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def cache_key(subject: Subject) -> str:
    """Return a file name for a subject: readable in front, unique behind."""
    digest = hashlib.sha256(msgspec.json.encode((_FORMAT, subject))).hexdigest()[:12]
    return f"{subject.task}-{subject.peer}-{subject.setting}-{digest}"


class Store:
    """Records in a folder, a file each.

    Args:
        folder: Is made when the first record is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, subject: Subject) -> Record | None:
        """Read the record of a subject; None without a measurement."""
        file = self._file(subject)
        return decode_json(file.read_bytes(), Record) if file.exists() else None

    def keep(self, record: Record) -> None:
        """Write a record in a single step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(record), indent=1)
        write_file(self._file(record.subject), content)

    def newest(
        self, part: Part, cpu: str, editions: Mapping[str, int]
    ) -> dict[tuple[str, str, str], Record]:
        """Return the newest record by peer, setting and task, for any version of the tool.

        Args:
            part, cpu: Required part and CPU of the records.
            editions: The same, by task; records of other tasks are left out.
        """
        newest: dict[tuple[str, str, str], Record] = {}
        for file in self._folder.glob("*.json"):
            record = decode_json(file.read_bytes(), Record)
            subject = record.subject
            identity = (subject.peer, subject.setting, subject.task)
            edition = editions.get(subject.task)
            if (subject.part, subject.cpu, subject.edition) != (part, cpu, edition):
                continue
            if identity not in newest or newest[identity].measured_at < record.measured_at:
                newest[identity] = record
        return newest

    def keep_model(self, subject: Subject, files: Iterable[Path]) -> None:
        """Copy a model's files, for a race."""
        folder = self._model_folder(subject)
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)

    def model(self, subject: Subject) -> Path | None:
        """Return the model of a subject; None if not kept."""
        file = self._model_folder(subject) / "model.onnx"
        return file if file.exists() else None

    def read_race(self, task: str, subjects: Iterable[Subject]) -> Race | None:
        """Read the race between exactly these models; None without a race."""
        file = self._race_file(task, subjects)
        return decode_json(file.read_bytes(), Race) if file.exists() else None

    def keep_race(self, race: Race, subjects: Iterable[Subject]) -> None:
        """Write a race in a single step."""
        file = self._race_file(race.task, subjects)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, msgspec.json.format(msgspec.json.encode(race), indent=1))

    def _model_folder(self, subject: Subject) -> Path:
        return self._folder / "models" / cache_key(subject)

    def _race_file(self, task: str, subjects: Iterable[Subject]) -> Path:
        keys = sorted(cache_key(subject) for subject in subjects)
        digest = hashlib.sha256(msgspec.json.encode(keys)).hexdigest()[:12]
        return self._folder / "races" / f"{task}-{digest}.json"

    def _file(self, subject: Subject) -> Path:
        return self._folder / f"{cache_key(subject)}.json"
