"""Cost of builds compared with ONNX Runtime's MinMax, in the benchmark's tables."""

import msgspec

from benchmarks.packager.calibration_table import calibration_costs, count_calibrators
from benchmarks.packager.costs import cost_cells
from benchmarks.packager.document import document
from benchmarks.packager.host import Host
from benchmarks.packager.judge import Verdict
from benchmarks.packager.readme import tables
from benchmarks.packager.records import Cost, Outcome, Record, Results, Subject
from benchmarks.packager.table import failures

_REFERENCE = Cost(wall_s=2.0, cpu_s=1.0, peak_bytes=100_000_000, others_s=0.1)


def _record(
    peer: str,
    setting: str,
    *,
    outcome: Outcome = "judged",
    wall_s: float = 3.0,
    peak_bytes: int = 140_000_000,
    others_s: float | None = 0.1,
    reference: Cost | None = None,
    simulator: Cost | None = None,
) -> Record:
    verdict = Verdict(metric=0.99, size_bytes=50_000, latency_ms=1.0, float_latency_ms=1.0)
    return Record(
        subject=Subject(
            peer=peer,
            setting=setting,
            version="1",
            task="digits",
            model_sha256="ab" * 32,
            part="evaluation",
            cpu="a CPU",
        ),
        outcome=outcome,
        wall_s=wall_s,
        cpu_s=1.8,
        peak_bytes=peak_bytes,
        others_s=others_s,
        reference=reference,
        simulator=simulator,
        verdict=verdict if outcome == "judged" else None,
        measured_at="2026-11-21T11:40:00Z",
        load_average=0.5,
    )


def _results(*records: Record, calibrations: tuple[Record, ...] = ()) -> Results:
    return Results(
        host=Host(cpu="a CPU", cores=2, memory_bytes=2**34, flags=("avx2",)),
        part="evaluation",
        calibration_count=100,
        float_records=(_record("float", "-"),),
        records=records,
        calibrations=calibrations,
    )


def _time(record: Record, *others: Record) -> str:
    return cost_cells(record, _results(record, *others))[0]


def _time_without_simulator(record: Record) -> str:
    return cost_cells(record, _results(record))[1]


def _memory(record: Record) -> str:
    return cost_cells(record, _results(record))[2]


def test_wall_time_counts_where_others_left_the_machine_alone_in_both_runs() -> None:
    disturbed = msgspec.structs.replace(_REFERENCE, others_s=1.0)
    alone = _record("edgepack", "cpu", wall_s=5.0, others_s=0.4, reference=_REFERENCE)
    assert _time(alone) == "**no**: wall 2.5x (processor 1.8x)"
    beside_others = msgspec.structs.replace(alone, others_s=0.6)
    assert _time(beside_others) == "processor 1.8x (wall 2.5x)"
    beside_disturbed = msgspec.structs.replace(alone, reference=disturbed)
    assert _time(beside_disturbed) == "processor 1.8x (wall 2.5x)"


def test_records_of_before_are_compared_with_the_contestant_and_by_processor_time() -> None:
    before = _record("edgepack", "cpu", others_s=None)
    reference = _record("ort", "static-default", wall_s=2.0, peak_bytes=100_000_000, others_s=None)
    results = _results(before, reference)
    assert cost_cells(before, results) == ("processor 1.0x (wall 1.5x)", "–", "1.4x")
    assert cost_cells(before, _results(before)) == ("–", "–", "–")


def test_what_the_simulator_takes_is_told_and_taken_off_in_a_column_of_its_own() -> None:
    simulator = Cost(wall_s=1.0, cpu_s=0.7, peak_bytes=130_000_000)
    record = _record(
        "edgepack", "qnn-htp", peak_bytes=180_000_000, reference=_REFERENCE, simulator=simulator
    )
    assert _memory(record) == "**no**: 1.8x (the simulator alone 1.3x)"
    assert _time(record) == "wall 1.5x (processor 1.8x; the simulator alone 0.5x)"
    busy = msgspec.structs.replace(record, others_s=6.0)
    assert _time(busy) == "processor 1.8x (wall 1.5x; the simulator alone 0.7x)"
    assert _time_without_simulator(record) == "1.1x"
    slower = msgspec.structs.replace(record, cpu_s=2.8)
    assert _time_without_simulator(slower) == "**no**: 2.1x"
    assert _time_without_simulator(msgspec.structs.replace(record, candidates=2)) == "–"
    assert _time_without_simulator(msgspec.structs.replace(record, simulator=None)) == "–"


def test_calibrators_are_told_beside_the_run_before_them_and_rivals_beside_theirs() -> None:
    def calibrated(method: str, **changes: object) -> Record:
        made = _record("edgepack", f"calibrated-by-{method}", outcome="made", reference=_REFERENCE)
        return msgspec.structs.replace(made, **changes)

    results = _results(
        _record("ort", "static-default", peak_bytes=100_000_000),
        _record("ort", "static-percentile", peak_bytes=800_000_000),
        calibrations=(
            calibrated("minmax"),
            calibrated("mse", peak_bytes=151_000_000),
            calibrated("entropy", outcome="crashed", because="Oops: no room"),
            calibrated("minmse", reference=None),
        ),
    )
    assert calibration_costs(results).splitlines() == [
        "| peak memory (processor time) | digits |",
        "| --- | --- |",
        "| onnxruntime static, MinMax | 100 MB (1.0 s) |",
        "| edgepack minmax | 1.4x (1.8x) |",
        "| edgepack percentile-99.99 | – |",
        "| edgepack mse | **no**: 1.5x (1.8x) |",
        "| edgepack entropy | **no**: crashed |",
        "| edgepack nonoverflow | – |",
        "| edgepack minmse | – |",
        "| onnxruntime static, Percentile | 8.0x (1.0x) |",
    ]
    count = ("memory ≤ 1.5x MinMax, for every calibrator", "1 of 3")
    assert count_calibrators(results) == count
    assert failures(results) == "- edgepack entropy, digits: crashed. Oops: no room"
    assert calibration_costs(results) in document(results)
    assert f"| {' | '.join(count)} |" in tables([results])


def test_pages_without_measured_calibrators_say_nothing_of_them() -> None:
    results = _results(_record("edgepack", "cpu", reference=_REFERENCE))
    assert "Calibration alone" not in document(results)
    assert "calibrator" not in tables([results])
