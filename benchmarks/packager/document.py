"""All results of a kind of CPU as a readable page, `docs/benchmarks/KIND.md`."""

from collections.abc import Iterator

from benchmarks.packager.calibration_table import calibration_costs
from benchmarks.packager.contestants import TARGETS, is_told_the_metric
from benchmarks.packager.costs import MOST_MEMORY, QUIET_SHARE
from benchmarks.packager.goals import check_goals
from benchmarks.packager.host import Host
from benchmarks.packager.in_turn import TURNS
from benchmarks.packager.predictions import predictions
from benchmarks.packager.records import Results
from benchmarks.packager.table import KEPT_SHARE, details, failures, overview


def document(results: Results) -> str:
    """Return the page, as Markdown."""
    return "\n\n".join(_sections(results)) + "\n"


def _sections(results: Results) -> Iterator[str]:
    yield f"# Benchmarks: what packagers make of real models, on a CPU with {results.host.kind}"
    yield (
        "Written by `make bench-packager` (`python -m benchmarks.packager --write-docs`) from "
        f"[`{results.host.kind}.json`]({results.host.kind}.json), which holds every measurement. "
        "The tasks are described in `benchmarks/tasks/README.md`."
    )
    yield _how(results)
    yield _describe(results.host)
    yield (
        "## By target\n\n"
        "The task's metric, and in brackets the speed beside the float model. **Bold** keeps "
        f"{KEPT_SHARE:.0%} of the float model's metric."
    )
    for target in TARGETS:
        yield overview(results, target)
    yield f"## The goals of edgepack\n\n{_how_goals_count()}\n\n{check_goals(results)}"
    if text := predictions(results):
        yield f"## What reports said, and what came true\n\n{_how_predicted()}\n\n{text}"
    if results.calibrations:
        yield f"## Calibration alone\n\n{_how_calibrated()}\n\n{calibration_costs(results)}"
    yield "## All numbers"
    for record in results.float_records:
        yield f"### {record.subject.task}\n\n{details(results, record.subject.task)}"
    if text := failures(results):
        yield f"## What did not end well, in the tool's last words\n\n{text}"
    versions = sorted({(record.subject.peer, record.subject.version) for record in results.records})
    listed = "\n".join(f"- {peer}: {version}" for peer, version in versions)
    yield f"## Versions\n\n{listed}"


def _how(results: Results) -> str:
    samples = {
        "evaluation": "the evaluation samples, which no tool saw",
        "development": "the development samples (`--quick`); what was told the metric saw them",
    }[results.part]
    is_any_told = any(is_told_the_metric(record.subject.setting) for record in results.records)
    return (
        f"Every tool gets the float model as its package ships it and the same "
        f"{results.calibration_count} calibration samples, in an environment and a process of its "
        f"own. A model is judged by {samples}. The CPU provider of ONNX Runtime runs every model, "
        "on one thread; latencies are medians of inferences of the model and of the float model "
        "in turn. What keeps the metric on the CPU is raced besides: all of a task's models and "
        "the float model in one process, turn by turn, and the tables show those speeds. Accuracy "
        "for an NPU is that of exact integer arithmetic (the products of 8-bit numbers saturate "
        "on x86 CPUs without VNNI, and on no NPU), and the speed here says nothing about the NPU. "
        "Time and peak memory (the process and its descendants; pages that processes share count "
        "once) are those of making the model; edgepack's hold its search, its rehearsal and its "
        "signature, and for QNN the vendor's simulator, some 200 MB, which no peer runs."
        "\n\n"
        "edgepack is told the model, the calibration folder and the profile, and for an NPU the "
        "shapes to fix, as its peers are where their documentation asks for it. "
        + (
            "`told the metric` adds the task's own metric over its development samples. "
            * is_any_told
        )
        + "`refused` means that edgepack wrote nothing, because no variant held its budget; its "
        "numbers are under the last words."
    )


def _how_goals_count() -> str:
    turns = ", ".join(f"{count} under {limit_s:g} s" for limit_s, count in TURNS.items())
    return (
        "Time and memory are those of the whole build, as multiples of what onnxruntime static, "
        "MinMax takes on the same task right before (older rows: in the same hour, or as marked); "
        f"both are medians of several runs in turn ({turns}; older rows: of three). "
        "Of the two times the first one counts: wall time where other programs took less than "
        f"{QUIET_SHARE:.0%} of the machine's processor time during both, else, or where that was "
        "not measured, processor time, which they change little. `the simulator alone` is a "
        "process that has nothing of a build: it opens what was built on the vendor's simulator "
        "and runs it twice, on one CPU as the build does. It is told, and taken off only in the "
        "column that says so, where nothing is searched."
    )


def _how_predicted() -> str:
    return (
        "What the report of a build says of its variant, from the calibration samples alone: its "
        "metric against the float model on held-out samples, with the lower bound (95 %), and what "
        "is expected to be kept of the task. Beside it what is kept of the task's own metric on "
        "samples that no build saw."
    )


def _how_calibrated() -> str:
    return (
        "What one calibration method takes where nothing else is tried: a whole `edgepack build` "
        "by a profile with that one method, which quantizes the whole graph, as ONNX Runtime's "
        "does, and takes whatever accuracy comes of it. Peak memory, and in brackets processor "
        "time, as multiples of what onnxruntime static, MinMax takes right before; the goal is "
        f"memory ≤ {MOST_MEMORY:g}x for every method. `nonoverflow` and `minmse` give power-of-two "
        "scales. The last row is taken from the tables above."
    )


def _describe(host: Host) -> str:
    vnni = (
        "It has VNNI."
        if host.has_vnni
        else "It has no VNNI: on CPUs that have it, 8-bit models are faster, and the order of the "
        "tools differs."
    )
    return (
        f"Measured on {host.cpu}, {host.cores} cores, {host.memory_bytes / 2**30:.0f} GiB, CPU "
        f"flags {', '.join(host.flags) or 'none that matter'}. {vnni} Other programs ran beside "
        "it: the load when each measurement began is in the JSON. Rows were measured at the "
        "moments in the column `at`; the speed beside the float model is taken in turn within "
        "each row, but times of making compare only between rows of the same hour."
    )
