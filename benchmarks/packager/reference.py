"""ONNX Runtime's MinMax, run right before what is ours, so that both had the same machine."""

import tempfile
from pathlib import Path

from benchmarks.packager.contestants import REFERENCE
from benchmarks.packager.environments import EnvironmentFailedError, prepare
from benchmarks.packager.making import PreparedTask, Terms, make, work_root
from benchmarks.packager.records import Cost


def measure_reference(prepared: PreparedTask, terms: Terms) -> Cost | None:
    """What it takes on a task; None where it makes no model."""
    try:
        environment = prepare(REFERENCE.peer)
    except EnvironmentFailedError:
        return None
    with tempfile.TemporaryDirectory(dir=work_root()) as work:
        made = make(REFERENCE, prepared, environment, terms, Path(work))
    return made.cost if made.outcome == "made" else None
