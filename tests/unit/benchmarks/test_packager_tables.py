"""The packager benchmark's tables, goals and cache keys, from made-up measurements."""

import argparse
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.packager.__main__ import choose
from benchmarks.packager.contestants import CALIBRATORS, CONTESTANTS, TARGETS
from benchmarks.packager.document import document
from benchmarks.packager.goals import check_goals, count_goals
from benchmarks.packager.host import Host, parse_busy_s, parse_host
from benchmarks.packager.judge import Verdict
from benchmarks.packager.making import outcome_of
from benchmarks.packager.measured_child import Measured
from benchmarks.packager.pages import INDEX, PAGES, README, in_order, read_pages
from benchmarks.packager.predictions import predictions
from benchmarks.packager.readme import BEGIN, END, put_into, summary, tables
from benchmarks.packager.records import (
    Outcome,
    Prediction,
    Race,
    Record,
    Results,
    Store,
    Subject,
    cache_key,
)
from benchmarks.packager.table import details, failures, kept_share, overview
from benchmarks.packager.timing import medians_in_turn_ms
from benchmarks.tasks.task import Feeds, Run

_SUBJECT = Subject(
    peer="ort",
    setting="static-default",
    version="onnxruntime 1.31.1",
    task="digits",
    model_sha256="ab" * 32,
    part="evaluation",
    cpu="a CPU",
)


def _record(
    peer: str,
    setting: str,
    metric: float | None,
    latency_ms: float = 1.0,
    *,
    outcome: Outcome = "judged",
    because: str = "",
    cpu_s: float = 2.0,
    peak_bytes: int = 200_000_000,
    measured_at: str = "2026-11-21T11:40:00Z",
) -> Record:
    verdict = None
    if metric is not None:
        verdict = Verdict(
            metric=metric, size_bytes=50_000, latency_ms=latency_ms, float_latency_ms=1.0
        )
    return Record(
        subject=msgspec.structs.replace(_SUBJECT, peer=peer, setting=setting),
        outcome=outcome,
        because=because,
        wall_s=5.0,
        cpu_s=cpu_s,
        peak_bytes=peak_bytes,
        verdict=verdict,
        measured_at=measured_at,
        load_average=0.5,
    )


def _results(*records: Record, flags: tuple[str, ...] = ("avx2",)) -> Results:
    return Results(
        host=Host(cpu="a CPU", cores=2, memory_bytes=2**34, flags=flags),
        part="evaluation",
        calibration_count=100,
        float_records=(_record("float", "-", 0.99),),
        records=records,
    )


def test_an_overview_shows_metric_and_speed_and_marks_what_is_kept() -> None:
    text = overview(
        _results(
            _record("edgepack", "cpu", 0.985, 0.5),
            _record("ort", "static-default", 0.3, 2.0),
        ),
        "cpu",
    )
    assert text.splitlines() == [
        "| CPU, 8-bit | digits |",
        "| --- | --- |",
        "| float model | 0.990 (1.00 ms) |",
        "| edgepack cpu | **0.985 (2.00x)** |",
        "| onnxruntime static, MinMax | 0.300 (0.50x) |",
    ]


def test_an_overview_names_every_failure_ours_too() -> None:
    text = overview(
        _results(
            _record("edgepack", "cpu", None, outcome="refused"),
            _record("ort", "dynamic", None, outcome="does not load"),
        ),
        "cpu",
    )
    assert "| edgepack cpu | refused |" in text
    assert "| onnxruntime dynamic | does not load |" in text


def test_the_details_of_a_task_hold_all_numbers_and_the_time() -> None:
    text = details(_results(_record("ort", "static-default", 0.495, 2.0)), "digits")
    assert text.splitlines()[-1] == (
        "| cpu | onnxruntime static, MinMax | 0.4950 | 50.0% | 0.05 MB | 2.00 ms | 0.50x | 5.0 s "
        "| 2.0 s | 200 MB | 2026-11-21 11:40 |"
    )


def test_last_words_are_listed_on_one_line_each() -> None:
    text = failures(
        _results(_record("ort", "dynamic", None, outcome="crashed", because="Oops: a|b\nc"))
    )
    assert text == "- onnxruntime dynamic, digits: crashed. Oops: a¦b c"


@pytest.mark.parametrize(
    ("metric", "float_metric", "expected"), [(0.5, 1.0, 0.5), (0.0, 0.0, 1.0), (1.0, 0.5, 2.0)]
)
def test_a_kept_share_is_of_the_float_models_metric(
    metric: float, float_metric: float, expected: float
) -> None:
    assert kept_share(metric, float_metric) == expected


def test_goals_name_the_rival_that_is_faster_and_the_cost_beside_minmax() -> None:
    text = check_goals(
        _results(
            _record("edgepack", "cpu", 0.99, 0.5, cpu_s=3.0, peak_bytes=400_000_000),
            _record("ort", "static-default", 0.99, 0.25),
            _record("ort", "dynamic", 0.1, 0.01),
        )
    )
    assert text.splitlines()[2:] == [
        "| cpu | digits | yes | **no**: 2.00x; onnxruntime static, MinMax 4.00x (not in turn) "
        "| processor 1.5x (wall 1.0x) | – | **no**: 2.0x |"
    ]


def test_a_race_overrules_what_was_timed_an_hour_apart() -> None:
    race = Race(
        task="digits",
        measured_at="2026-11-21T15:00:00Z",
        latencies_ms={"float": 1.0, "edgepack cpu": 0.5, "ort static-default": 0.8},
    )
    results = msgspec.structs.replace(
        _results(
            _record("edgepack", "cpu", 0.99, 0.9), _record("ort", "static-default", 0.99, 0.1)
        ),
        races=(race,),
    )
    assert "2.00x; onnxruntime static, MinMax 1.25x |" in check_goals(results)
    assert "| edgepack cpu | **0.990 (2.00x)** |" in overview(results, "cpu")
    assert "| edgepack cpu | 0.9900 | 100.0% | 0.05 MB | 0.90 ms | 1.11x |" in details(
        results, "digits"
    )


def test_models_that_take_turns_are_timed_alike_and_a_race_is_found_again(tmp_path: Path) -> None:
    fed: list[tuple[str, float]] = []

    def model(name: str) -> Run:
        def run(feeds: Feeds) -> dict[str, np.ndarray]:
            fed.append((name, float(feeds["x"][0])))
            return {}

        return run

    samples = [{"x": np.array([float(number)])} for number in range(4)]
    medians = medians_in_turn_ms({"a": model("a"), "b": model("b")}, samples, timed_s=0.0)
    assert set(medians) == {"a", "b"}
    assert fed[6:10] == [("a", 0.0), ("b", 0.0), ("a", 1.0), ("b", 1.0)], "after three to warm up"

    store = Store(tmp_path / "packager")
    other = msgspec.structs.replace(_SUBJECT, setting="dynamic")
    race = Race(task="digits", measured_at="2026-11-21T15:00:00Z", latencies_ms=medians)
    store.keep_race(race, [_SUBJECT, other])
    assert store.read_race("digits", [other, _SUBJECT]) == race
    assert store.read_race("digits", [_SUBJECT]) is None, "another field of entrants"


def test_goals_are_counted_and_costs_of_different_hours_are_marked() -> None:
    results = _results(
        _record("edgepack", "cpu", 0.99, 0.5, cpu_s=3.0, measured_at="2026-11-21T15:00:00Z"),
        _record("edgepack", "qnn-htp", 0.5),
        _record("ort", "static-default", 0.99, 0.6),
    )
    assert "| processor 1.5x (wall 1.0x; another hour) | – | 1.0x |" in check_goals(results)
    without = "processor time ≤ 2x MinMax without what the vendor's simulator takes by itself"
    assert count_goals(results) == [
        ("keeps 99 % or refuses", "1 of 2"),
        ("as fast as the fastest that keeps it", "1 of 1"),
        ("time ≤ 2x MinMax, where nothing is searched", "2 of 2"),
        (without, "0 of 0"),
        ("memory ≤ 1.5x MinMax", "2 of 2"),
    ]
    text = tables([results])
    assert "| keeps 99 % or refuses | 1 of 2 |" in text
    assert f"| {without} | not measured |" in text


def test_the_time_of_a_search_is_told_and_neither_held_nor_missed() -> None:
    searched = msgspec.structs.replace(
        _record("edgepack", "cpu", 0.99, cpu_s=30.0), candidates=12, note="precision a8w8"
    )
    results = _results(searched, _record("ort", "static-default", 0.99))
    assert "| searched: processor 15.0x (wall 1.0x) | – |" in check_goals(results)
    assert ("time ≤ 2x MinMax, where nothing is searched", "0 of 0") in count_goals(results)
    assert "edgepack cpu (precision a8w8, 12 candidates)" in details(results, "digits")


def test_what_a_report_said_stands_beside_what_came_true() -> None:
    def said(setting: str, metric: float, task_kept: float) -> Record:
        prediction = Prediction(
            metric="top1_agreement", value=task_kept, low=0.95, task_kept=task_kept
        )
        record = _record("edgepack", setting, metric)
        return msgspec.structs.replace(record, prediction=prediction)

    results = _results(
        said("cpu", 0.99, 0.995),
        said("qnn-htp", 0.97, 0.999),
        _record("edgepack", "vitisai-xint8", None, outcome="refused"),
        _record("edgepack", "openvino-cpu", 0.99),
        _record("ort", "static-default", 0.3),
    )
    text = predictions(results)
    rows = [line for line in text.splitlines() if line.startswith("| edgepack")]
    told = "top1_agreement 0.9950 (at least 0.9500)"
    assert rows == [
        f"| edgepack cpu | digits | {told} | 99.50% | 100.00% | +0.50% |",
        "| edgepack qnn-htp | digits | top1_agreement 0.9990 (at least 0.9500) | 99.90% | 97.98% "
        "| **-1.92%** |",
        "| edgepack vitisai-xint8 | digits | refused | – | – | – |",
    ]
    assert text.startswith(
        "Within 1% of each other: 1 of 2 (the goal is 95%). 99% of the task or more: 1 of 2 that"
    )
    assert text in document(results)
    before = _results(_record("edgepack", "cpu", 0.99))
    assert predictions(before) == "", "reports of before said nothing that was kept"
    assert "What reports said" not in document(before)


def test_a_page_keeps_its_own_words_around_the_measured_ones() -> None:
    page = put_into(f"# mine\n{BEGIN}\nstale words\n{END}\nmore\n", "measured")
    assert page == f"# mine\n{BEGIN}\n\nmeasured\n\n{END}\nmore\n"
    assert put_into(page, "measured") == page


@pytest.mark.parametrize("page", ["none", f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_its_marks_is_no_place_for_a_table(page: str) -> None:
    with pytest.raises(ValueError, match=r"the page must hold"):
        put_into(page, "measured")


def test_the_index_shows_both_kinds_of_cpu_and_of_an_npu_the_fuller_table() -> None:
    npu = _record("edgepack", "qnn-htp", 0.98)
    few = _results(_record("edgepack", "cpu-vnni", 0.99, 0.5), npu, flags=("avx512_vnni",))
    more = _results(_record("edgepack", "cpu", 0.98, 0.9), npu, _record("quark", "a16w8", 0.97))
    text = tables([few, more])
    heads = [line.split(" | ")[0] for line in text.splitlines() if line.endswith("digits |")]
    assert heads == [
        "| CPU, 8-bit (a CPU, with VNNI)",
        "| CPU, 8-bit (a CPU, without VNNI)",
        "| QNN HTP, A16W8",
    ]
    assert "| edgepack cpu-vnni | **0.990 (2.00x)** |" in text
    assert "| Quark A16W8 | 0.970 (1.00x) |" in text
    assert "(avx512_vnni.md)" in text
    assert "(avx2.md)" in text
    assert "OpenVINO" not in text, "a target that nobody was measured for takes no room"
    assert in_order([more, few]) == [few, more]


def test_the_summary_counts_what_the_best_setting_of_each_tool_keeps() -> None:
    results = _results(
        _record("edgepack", "cpu", 0.99, 0.5),
        _record("ort", "static-default", 0.5, 0.1),
        _record("ort", "dynamic", 0.99, 2.0),
        _record("olive", "static", 0.5, 0.1),
        _record("edgepack", "qnn-htp", 0.985, 0.1),
        _record("quark", "a16w8", 0.97, 0.1),
    )
    lines = summary([results]).splitlines()[2:]
    assert lines == [
        "| target | edgepack | ONNX Runtime | Olive | Quark |",
        "| --- | --- | --- | --- | --- |",
        "| CPU, 8-bit | **1 of 1 (2.00x)** | 1 of 1 (0.50x) | 0 of 1 | – |",
        "| QNN HTP, A16W8 | **1 of 1** | – | – | 0 of 1 |",
    ]


def test_all_pages_are_in_step_with_the_measurements() -> None:
    remedy = "python -m benchmarks.packager --render"
    pages = read_pages()
    assert pages
    for results in pages:
        text = (PAGES / f"{results.host.kind}.md").read_text(encoding="utf-8")
        assert text == document(results), remedy
    for path, text in ((README, summary(pages)), (INDEX, tables(pages))):
        page = path.read_text(encoding="utf-8")
        assert put_into(page, text) == page, remedy


def test_a_setting_for_other_cpus_is_not_measured_on_this_one() -> None:
    given = argparse.Namespace(peers=["edgepack"], targets=["cpu"], settings=["cpu", "cpu-vnni"])
    with_vnni, without = (_results(flags=flags).host for flags in (("avx512_vnni",), ("avx2",)))
    chosen = [
        [entry.setting for entry in choose(CONTESTANTS, given, host)]
        for host in (with_vnni, without)
    ]
    assert chosen == [["cpu", "cpu-vnni"], ["cpu"]]


def test_a_refusal_is_no_miss_but_a_crash_is() -> None:
    reference = _record("ort", "static-default", 0.99)
    refused, crashed = (
        check_goals(_results(_record("edgepack", "cpu", None, outcome=outcome), reference))
        for outcome in ("refused", "crashed")
    )
    assert "| cpu | digits | refused | – | searched: processor 1.0x (wall 1.0x) |" in refused
    assert "| cpu | digits | **no**: crashed | – | – | – |" in crashed, "what it took says nothing"


def test_the_page_says_whether_the_cpu_has_vnni() -> None:
    record = _record("ort", "static-default", 0.99)
    assert "It has no VNNI" in document(_results(record))
    assert "It has VNNI." in document(_results(record, flags=("avx2", "avx512_vnni")))


def test_a_cache_key_is_readable_and_changes_with_everything_measured() -> None:
    key = cache_key(_SUBJECT)
    assert key.startswith("digits-ort-static-default-")
    changed = [
        msgspec.structs.replace(_SUBJECT, **{field: "other"})
        for field in Subject.__struct_fields__
        if field not in {"part", "edition"}
    ]
    changed.append(msgspec.structs.replace(_SUBJECT, part="development"))
    changed.append(msgspec.structs.replace(_SUBJECT, edition=2))
    assert len({key, *map(cache_key, changed)}) == len(changed) + 1


def test_a_store_gives_back_what_it_kept_and_the_newest_of_several_versions(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = Store(tmp_path_factory.mktemp("records") / "packager")
    older = _record("ort", "static-default", 0.1)
    newer = msgspec.structs.replace(
        _record("ort", "static-default", 0.2, measured_at="2026-11-22T00:00:00Z"),
        subject=msgspec.structs.replace(_SUBJECT, version="onnxruntime 1.32"),
    )
    assert store.read(_SUBJECT) is None
    store.keep(newer)
    store.keep(older)
    assert store.read(_SUBJECT) == older
    newest = store.newest("evaluation", "a CPU", {"digits": 1})
    assert newest == {("ort", "static-default", "digits"): newer}
    assert store.newest("evaluation", "a CPU", {"digits": 2}) == {}  # another question was asked


@pytest.mark.parametrize(
    ("ending", "exit_code", "is_written", "expected"),
    [
        ("ended", 0, True, "made"),
        ("ended", 0, False, "crashed"),
        ("ended", 1, True, "crashed"),
        ("ended", 3, False, "refused"),
        ("ended", -11, False, "crashed"),
        ("over the time limit", -9, True, "over the time limit"),
    ],
)
def test_how_a_runner_ended_decides_the_outcome(
    ending: Outcome, exit_code: int, is_written: bool, expected: Outcome
) -> None:
    made = msgspec.convert(
        {
            "ending": ending,
            "exit_code": exit_code,
            "wall_s": 1.0,
            "cpu_s": 1.0,
            "peak_bytes": 1,
            "others_s": 0.0,
        },
        Measured,
    )
    assert outcome_of(made, is_written=is_written) == expected


def test_a_cpus_telling_flags_are_read_from_cpuinfo() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 sse4_2 avx512_vnni\n"
    host = parse_host(text, cores=2, memory_bytes=1)
    assert (host.cpu, host.flags) == ("AMD EPYC", ("avx2", "avx512_vnni"))
    assert host.has_vnni


def test_the_time_that_a_machine_was_busy_is_read_without_its_idle_time() -> None:
    cpu_times = "cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
    assert parse_busy_s(cpu_times, ticks_a_second=100) == pytest.approx(1.71)


def test_every_contestant_is_for_a_known_target_and_stands_once() -> None:
    assert {entry.target for entry in CONTESTANTS} == set(TARGETS)
    names = [(entry.peer, entry.setting) for entry in (*CONTESTANTS, *CALIBRATORS)]
    assert len(set(names)) == len(names)
