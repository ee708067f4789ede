"""Cost of a calibration method without a search, compared with ONNX Runtime's MinMax."""

import tempfile
from pathlib import Path

import msgspec

from benchmarks.packager.contestants import Contestant
from benchmarks.packager.environments import prepare
from benchmarks.packager.in_turn import measure_reference
from benchmarks.packager.making import PreparedTask, Terms, make, subject_of, work_root
from benchmarks.packager.records import Record


def measure_calibrator(calibrator: Contestant, prepared: PreparedTask, terms: Terms) -> Record:
    """Measure a calibrator right after the reference, or read the earlier measurement.

    Args:
        calibrator: An entry of `CALIBRATORS`.
        prepared: The task.
        terms: The run's terms.
    """
    environment = prepare(calibrator.peer)
    subject = subject_of(calibrator, environment, prepared, terms)
    if kept := terms.store.read(subject):
        return kept
    reference = measure_reference(prepared, terms)
    with tempfile.TemporaryDirectory(dir=work_root()) as work:
        made = make(calibrator, prepared, environment, terms, Path(work))
    record = msgspec.structs.replace(made, reference=reference)
    terms.store.keep(record)
    return record
