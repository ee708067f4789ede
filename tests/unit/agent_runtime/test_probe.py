"""Probes: real children that answer, are wrong, crash, hang or talk nonsense."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.agent.config import ProbeConfig
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.probe import probe_variant
from edgepack.agent.runtime.probing import judge
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.manifest import GOLDEN_FILE, Placement, Variant
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.tasks.description import TaskOutputs
from edgepack.wire.reports import ProbeResult
from tests.simulators.children import (
    LONGER_AND_LONGER_S,
    child,
    hanging_child,
    has_ended,
    noted_pid,
)
from tests.simulators.manifests import CPU, QNN, make_variant
from tests.unit.agent_runtime.examples import make_inputs, save_variant

LIMIT = ProbeConfig(timeout_s=400, runs=5)


def make_bundle(folder: Path, variant: Variant, *, scale: float = 1.0) -> Path:
    """Make a bundle's folder with the golden samples of the model at scale 1."""
    save_variant(folder, variant)
    session = open_session(folder, variant)
    inputs = make_inputs(3)
    golden = Golden(inputs=inputs, outputs=tuple(session.run(feeds) for feeds in inputs))
    (folder / GOLDEN_FILE).parent.mkdir(exist_ok=True)
    write_golden(folder / GOLDEN_FILE, golden)
    save_variant(folder, variant, scale=scale)
    return folder


def test_a_right_variant_is_right_with_its_time_and_its_nodes(tmp_path: Path) -> None:
    variant = make_variant()
    result = probe_variant(make_bundle(tmp_path, variant), variant, config=LIMIT, threads=1)
    assert result.right, result.because
    assert (result.variant, result.provider) == ("cpu", CPU)
    assert result.latency_ms is not None
    assert result.latency_ms > 0
    assert result.taken == result.total > 0
    assert result.worst_nrmse == 0.0
    assert result.because.endswith("3 of 3 golden samples")


def test_a_variant_with_other_outputs_is_wrong_with_the_numbers(tmp_path: Path) -> None:
    variant = make_variant()
    folder = make_bundle(tmp_path, variant, scale=3.0)
    result = probe_variant(folder, variant, config=LIMIT)
    assert not result.right
    assert "output 'y': cosine" in result.because
    assert result.worst_nrmse == pytest.approx(2.0, rel=1e-3)


def test_outputs_that_are_not_finite_are_wrong(tmp_path: Path) -> None:
    variant = make_variant()
    result = probe_variant(
        make_bundle(tmp_path, variant, scale=float("nan")), variant, config=LIMIT
    )
    assert not result.right
    assert "not finite" in result.because
    assert result.worst_nrmse is None


def test_a_missing_model_is_a_verdict_and_not_an_exception(tmp_path: Path) -> None:
    variant = make_variant()
    folder = make_bundle(tmp_path, variant)
    (folder / variant.folder / variant.model_file).unlink()
    result = probe_variant(folder, variant, config=LIMIT)
    assert (result.right, result.because) == (False, "the model file is missing")


def test_missing_golden_samples_are_a_verdict(tmp_path: Path) -> None:
    variant = make_variant()
    save_variant(tmp_path, variant)
    result = probe_variant(tmp_path, variant, config=LIMIT)
    assert not result.right
    assert "cannot read golden samples" in result.because


@pytest.mark.parametrize(
    ("code", "because"),
    [
        ("import os; os.kill(os.getpid(), 11)", "the probe crashed with SIGSEGV"),
        ("import os; os.abort()", "the probe crashed with SIGABRT"),
        ("raise SystemExit('no such chip')", "the probe ended with exit code 1: no such chip"),
        ("pass", "the probe ended with exit code 0"),
        ("print('hello')", "the probe's answer cannot be read: "),
    ],
)
def test_a_child_that_dies_or_babbles_is_a_verdict(tmp_path: Path, code: str, because: str) -> None:
    result = probe_variant(tmp_path, make_variant(), config=LIMIT, command=child(code))
    assert not result.right
    assert result.because.startswith(because)


GREEDY = "import sys, time; held = bytearray(b'x') * 10**9; time.sleep(600)"


def test_a_child_that_takes_too_much_memory_is_ended_and_the_verdict_has_the_number(
    tmp_path: Path,
) -> None:
    config = ProbeConfig(timeout_s=400, memory_bytes=200_000_000)
    result = probe_variant(tmp_path, make_variant(), config=config, command=child(GREEDY))
    assert not result.right
    assert result.because == "the probe needs more than 200 MB of memory"
    assert result.peak_bytes > 200_000_000


def test_a_real_probe_has_a_peak_and_is_held_to_its_limit(tmp_path: Path) -> None:
    variant = make_variant()
    folder = make_bundle(tmp_path, variant)
    result = probe_variant(folder, variant, config=LIMIT, threads=1)
    assert result.right
    peak_bytes = result.peak_bytes
    assert 5_000_000 < peak_bytes < 1_000_000_000
    config = ProbeConfig(timeout_s=400, memory_bytes=peak_bytes // 2)
    result = probe_variant(folder, variant, config=config, threads=1)
    assert not result.right
    assert "the probe needs more than " in result.because
    roomy = ProbeConfig(timeout_s=400, memory_bytes=2 * peak_bytes)
    assert probe_variant(folder, variant, config=roomy, threads=1).right


def test_a_child_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    grandchild = tmp_path / "pid"
    for timeout_s in LONGER_AND_LONGER_S:
        config, command = ProbeConfig(timeout_s=timeout_s), hanging_child(grandchild)
        result = probe_variant(tmp_path, make_variant(), config=config, command=command)
        assert not result.right
        assert result.because == f"the probe gave no answer within {timeout_s:g} s"
        if (pid := noted_pid(grandchild)) is not None:
            break
    assert pid is not None
    assert has_ended(pid)


class AcceleratedSession(Session):
    """A real session that claims an accelerator, and counts its runs."""

    def __init__(self, real: Session, *, taken: int) -> None:
        self.real = real
        self.provider = QNN
        self.placement = Placement(provider=QNN, taken=taken, total=4, verified=True)
        self.runs = 0

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.runs += 1
        return self.real.run(feeds)


def test_an_accelerator_that_took_no_node_is_wrong_without_a_run(tmp_path: Path) -> None:
    variant = make_variant()
    save_variant(tmp_path, variant)
    session = AcceleratedSession(open_session(tmp_path, variant), taken=0)
    inputs = make_inputs(2)
    golden = Golden(inputs=inputs, outputs=inputs)
    result = judge(session, golden, variant, runs=5, golden_s=60)
    assert not result.right
    assert result.because == "QNNExecutionProvider took none of 4 nodes"
    assert (result.taken, result.total, session.runs) == (0, 4, 0)


def test_two_samples_run_however_short_the_time(tmp_path: Path) -> None:
    variant = make_variant()
    save_variant(tmp_path, variant)
    real = open_session(tmp_path, variant)
    inputs = make_inputs(8)
    golden = Golden(inputs=inputs, outputs=tuple(real.run(feeds) for feeds in inputs))
    session = AcceleratedSession(real, taken=4)
    result = judge(session, golden, variant, runs=1, golden_s=0.0)
    assert result.right
    assert result.because.endswith("2 of 8 golden samples")
    assert session.runs == 2


class ScriptedSession:
    """Answers with a factor on its input, and reports the given times."""

    provider = QNN
    placement = Placement(provider=QNN, taken=1, total=1, verified=True)

    def __init__(self, *times_ms: float, factor: float = 1.0) -> None:
        self._times_ms = iter(times_ms)
        self._factor = np.float32(factor)

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        return {"y": feeds["x"].astype(np.float32) * self._factor}, next(self._times_ms)

    @property
    def left(self) -> tuple[float, ...]:
        """Times of runs that did not happen."""
        return tuple(self._times_ms)


def judge_scripted(session: ScriptedSession, *, runs: int = 5) -> ProbeResult:
    inputs = make_inputs(3)
    golden = Golden(inputs=inputs, outputs=tuple({"y": feeds["x"]} for feeds in inputs))
    return judge(session, golden, make_variant(), runs=runs, golden_s=60)


def test_the_first_run_warms_up_and_counts_in_no_latency() -> None:
    session = ScriptedSession(900.0, 2.0, 1.0, 3.0, 2.0, 5.0, 99.0)
    result = judge_scripted(session)
    assert (result.right, result.latency_ms) == (True, 2.0)
    assert session.left == (99.0,), "five runs were asked for, beside the first"


def test_a_slow_provider_is_timed_for_two_seconds_and_not_longer() -> None:
    session = ScriptedSession(9.0, 700.0, 700.0, 599.0, 2.0, 700.0, 99.0)
    assert judge_scripted(session, runs=50).latency_ms == 649.5
    assert session.left == (700.0, 99.0), "1999 ms are not 2 s, 2001 are"


def test_what_computes_something_else_is_timed_no_longer() -> None:
    session = ScriptedSession(9.0, 2.0, 1.0, 99.0, factor=3.0)
    result = judge_scripted(session)
    assert (result.right, result.latency_ms, session.left) == (False, 1.5, (99.0,))
    assert result.worst_nrmse == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (3.0, False)])
def test_the_task_is_judged_where_the_tolerance_would_pass(factor: float, is_right: bool) -> None:
    part = TaskOutputs(task="values", outputs=("y",), source="declared")
    variant = make_variant(cosine_min=0.9, nrmse_max=10.0)
    agreements = (GoldenAgreement(part=part, keep=0.9),)
    variant = replace(variant, facts=replace(variant.facts, agreements=agreements))
    inputs = make_inputs(3)
    golden = Golden(inputs=inputs, outputs=tuple({"y": feeds["x"]} for feeds in inputs))
    session = ScriptedSession(*[1.0] * 9, factor=factor)
    result = judge(session, golden, variant, runs=1, golden_s=60)
    assert result.right == is_right, result.because
    assert "values" in result.because or is_right


def test_an_error_without_end_is_told_as_none_that_json_can_hold() -> None:
    result = judge_scripted(ScriptedSession(*[1.0] * 9, factor=float("inf")))
    assert (result.right, result.worst_nrmse) == (False, None)
