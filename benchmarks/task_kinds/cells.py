"""A cell of the table: a kind of task, built for a profile, compared with the truth."""

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx

from benchmarks.packager.measured_child import Measured, last_words, run_measured
from benchmarks.task_kinds.kind import Half, Kind, TaskModel
from benchmarks.task_kinds.truth import measure_truth
from benchmarks.tasks.places import ROOT
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.decoding import decode_json
from edgepack.durable import write_file

PROFILES = ("cpu", "qnn-htp", "qnn-htp-a8w8", "vitisai-xint8", "openvino-cpu")
"""In the table's order."""

Outcome = Literal["quantized", "float", "rejected", "failed", "over the time limit"]
"""A quantized model was published, the float model was, nothing was since the budget was missed,
or the build ended with another error."""

_FIXED_SHAPES = ("qnn-htp", "qnn-htp-a8w8", "vitisai-xint8", "openvino-cpu")
_OF_OTHERS = ("attempts", "refused", "proposals")
"""Parts of a report that tell of candidates which were not published."""

_MEMORY_LIMIT_BYTES = 6 * 10**9


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A build, and the quality of its variant.

    Attributes:
        kind, half, what, task_metric: See `Kind` and `TaskModel`.
        profile: The profile.
        is_declared: The outputs were declared in edgepack.toml.
        version: Of edgepack's sources.
        outcome, because: See `Outcome`; the error or note in the build's words.
        metric, value: The build's own measure, and its value.
        reported: Share of the task's accuracy that the build says is retained.
        weak: Whether the build reports a weak verdict; None without such a report.
        weak_because: Its reason.
        float_metric, variant_metric: The task's metric on fresh data; for a rejected variant, on
            the variant of `--allow-degraded`.
        speedup: Against the float model, from the build's report.
        build_s: The build, wall time, seconds.
        measured_at: RFC 3339, UTC.
    """

    kind: str
    half: Half
    what: str
    task_metric: str
    profile: str
    is_declared: bool
    version: str
    outcome: Outcome
    because: str = ""
    metric: str = ""
    value: float | None = None
    reported: float | None = None
    weak: bool | None = None
    weak_because: str = ""
    float_metric: float | None = None
    variant_metric: float | None = None
    speedup: float | None = None
    build_s: float = 0.0
    measured_at: str = ""

    @property
    def truth(self) -> float | None:
        """Share of the float model's metric that the variant has on fresh data."""
        if self.float_metric is None or self.variant_metric is None:
            return None
        return self.variant_metric / self.float_metric


class Store:
    """Cells in a folder, a file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, kind: str, profile: str, *, is_declared: bool) -> Cell | None:
        """Return a cell that was measured before."""
        file = self._file(kind, profile, is_declared)
        return decode_json(file.read_bytes(), Cell) if file.exists() else None

    def keep(self, cell: Cell) -> None:
        """Write a cell in a single step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(cell), indent=1)
        write_file(self._file(cell.kind, cell.profile, cell.is_declared), content)

    def _file(self, kind: str, profile: str, is_declared: bool) -> Path:
        return self._folder / f"{kind}.{profile}.{'declared' if is_declared else 'plain'}.json"


class Bench:
    """A folder for builds of a kind of task for all profiles.

    Args:
        kind: The kind.
        folder: Replaced.
        time_limit_s: For each build, and for each measurement of the truth.
        version: Of edgepack's sources.
    """

    def __init__(self, kind: Kind, folder: Path, *, time_limit_s: float, version: str) -> None:
        self._kind, self._folder, self._time_limit_s = kind, folder, time_limit_s
        self._version = version
        self._task = kind.make()
        write_task(self._task, folder)

    def measure(self, profile: str, *, is_declared: bool) -> Cell:
        """Build a cell and measure the truth."""
        measured = self._build(profile, is_declared=is_declared)
        log = (self._folder / "log.txt").read_text(errors="replace")
        found: dict[str, Any] = {}
        because: str
        if measured.ending != "ended":
            outcome: Outcome = "over the time limit"
            because = measured.ending
        elif measured.exit_code == 0:
            variant = self._report()["variants"][0]
            outcome = "float" if variant["float_because"] else "quantized"
            because = variant["float_because"]
            found = _verdict(variant, self._report(), self._manifest())
        else:
            report = self._report()
            refused = report.get("refused") or []
            outcome = "rejected" if refused and refused[0].get("best") else "failed"
            because = _error_of(log) or last_words(self._folder / "log.txt")
            if outcome == "rejected":
                found = _verdict(refused[0]["best"], report, {})
                self._build(profile, is_declared=is_declared, options=("--allow-degraded",))
        if outcome in ("quantized", "float", "rejected"):
            found |= self._truth(profile)
        return Cell(
            kind=self._kind.name,
            half=self._kind.half,
            what=self._kind.what,
            task_metric=self._task.metric,
            profile=profile,
            is_declared=is_declared,
            version=self._version,
            outcome=outcome,
            because=because,
            build_s=round(measured.wall_s, 1),
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            **found,
        )

    def _build(self, profile: str, *, is_declared: bool, options: Iterable[str] = ()) -> Measured:
        """Run `edgepack build` as a user does."""
        for old in self._folder.glob("built*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        command: list[str | Path] = [
            _python(profile).with_name("edgepack"),
            "build",
            "model.onnx",
            "--json",
        ]
        command += ["--profile", profile, "--calibration", "calibration", "--key", "release.key"]
        command += ["--version", "1.0.0", "--output", "built", *options]
        command += ["--config", "declared.toml" if is_declared else "plain.toml"]
        command += ["--prefer", "size"]  # speed says little of models that take microseconds
        if profile in _FIXED_SHAPES:
            for name, shape in self._task.shapes.items():
                command += ["--shape", f"{name}={','.join(map(str, shape))}"]
        return run_measured(
            command,
            folder=self._folder,
            log=self._folder / "log.txt",
            time_limit_s=self._time_limit_s,
            memory_limit_bytes=_MEMORY_LIMIT_BYTES,
        )

    def _report(self) -> dict[str, Any]:
        file = self._folder / "built.report.json"
        return dict(json.loads(file.read_bytes())) if file.exists() else {}

    def _manifest(self) -> dict[str, Any]:
        return dict(json.loads((self._folder / "built" / "manifest.json").read_bytes()))

    def _truth(self, profile: str) -> dict[str, float]:
        """Measure in a separate process, which a model may crash; return {} after a crash."""
        bundle = self._folder / "built"
        if not (bundle / "manifest.json").exists():
            return {}
        if not profile.startswith("openvino"):
            return self._truth_here(bundle)
        command: list[str | Path] = [_python(profile), "-m", "benchmarks.task_kinds.truth"]
        command += ["--kind", self._kind.name]
        command += ["--model", self._folder / "model.onnx", "--bundle", bundle]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=self._time_limit_s,
                check=True,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(error.stderr or error, file=sys.stderr)
            return {}
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def _truth_here(self, bundle: Path) -> dict[str, float]:
        """Measure in a fork of this process, which need not train the model again."""
        fork = multiprocessing.get_context("fork")
        receiver, sender = fork.Pipe(duplex=False)

        def measure() -> None:
            sender.send(measure_truth(self._task, self._folder / "model.onnx", bundle))

        child = fork.Process(target=measure)
        child.start()
        sender.close()
        try:
            return dict(receiver.recv()) if receiver.poll(self._time_limit_s) else {}
        except EOFError:
            return {}
        finally:
            child.kill()
            child.join()


def write_task(task: TaskModel, folder: Path) -> None:
    """Write the files that `edgepack build` takes."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "calibration").mkdir(parents=True)
    for count, sample in enumerate(task.calibration):
        np.savez(folder / "calibration" / f"{count:04}.npz", **sample)  # type: ignore[arg-type]
    onnx.save(task.model, folder / "model.onnx")
    (folder / "plain.toml").write_text("")
    (folder / "declared.toml").write_text(task.outputs)
    write_key_pair(generate_key(), folder / "release")


def _verdict(
    variant: Mapping[str, Any], report: Mapping[str, Any], manifest: Mapping[str, Any]
) -> dict[str, Any]:
    accuracy = variant["accuracy"]
    weak, because = find_weakness(variant, report, manifest)
    return {
        "metric": accuracy["metric"],
        "value": accuracy["value"],
        "reported": accuracy.get("task_kept", accuracy.get("details", {}).get("task_kept")),
        "weak": weak,
        "weak_because": because,
        "speedup": (variant.get("timing") or {}).get("speedup"),
    }


def find_weakness(*documents: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Return whether the documents call the verdict weak, and why; None where none says so.

    A document may say so by a truth value, a number, a reason, or a list of reasons.
    """
    is_weak: bool | None = None
    reasons: list[str] = []
    waiting: list[Any] = list(documents)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if key in ("weak", "is_weak"):
                    is_weak = bool(is_weak) or bool(inner)
                elif key in ("weak_because", "because_weak") and inner:
                    reasons.append(str(inner))
                if key in ("weak", "is_weak") and isinstance(inner, str | list) and inner:
                    reasons += [inner] if isinstance(inner, str) else [str(one) for one in inner]
                if key not in _OF_OTHERS:
                    waiting.append(inner)
        elif isinstance(value, list):
            waiting += value
    return is_weak, "; ".join(dict.fromkeys(reasons))


def _error_of(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else ""


def _python(profile: str) -> Path:
    """Return the interpreter of the environment that has a profile's provider."""
    is_openvino = profile.startswith("openvino")
    return ROOT / ".venv-openvino" / "bin" / "python" if is_openvino else Path(sys.executable)
