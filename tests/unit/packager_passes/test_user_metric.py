"""A metric of the user's own is foreign code: whatever it does, the build says so."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepack.errors import BuildError
from edgepack.packager.gates.user_metric import (
    doubt_metric,
    evaluate_metric,
    judge_metric,
    load_metric,
    metric_name,
)
from edgepack.packager.runtime.model_run import Run
from edgepack.tasks.arrays import Outputs


@pytest.mark.parametrize("value", ["0.9", True, np.True_, np.array([0.9, 0.8]), 10**400])
def test_a_metric_that_returns_a_text_a_yes_or_a_list_is_refused(value: object) -> None:
    with pytest.raises(BuildError, match="which is not a finite number"):
        evaluate_metric(lambda run: value, lambda feeds: {})  # type: ignore[arg-type, return-value]


def test_a_metric_that_ends_the_program_is_an_error_of_the_build() -> None:
    def leaving(run: Run) -> float:
        raise SystemExit(3)

    with pytest.raises(BuildError, match="raised SystemExit: 3"):
        evaluate_metric(leaving, lambda feeds: {})


def test_a_metric_without_a_usable_exception_is_an_error_of_the_build() -> None:
    class _UnprintableError(BaseException):
        def __str__(self) -> str:
            raise ValueError

    def failing(run: Run) -> float:
        raise _UnprintableError

    with pytest.raises(BuildError, match="raised _UnprintableError"):
        evaluate_metric(failing, lambda feeds: {})


def test_the_line_of_a_failing_metric_is_the_users_own() -> None:
    def misfeeding(run: Run) -> float:
        return float(run({"no": np.zeros(1)})["y"].size)

    def run(feeds: dict[str, np.ndarray]) -> Outputs:
        return {"y": np.concatenate([])}

    with pytest.raises(BuildError) as caught:
        evaluate_metric(misfeeding, run)
    assert "test_user_metric.py, line" in str(caught.value)


@pytest.mark.parametrize("float_value", [0.0, -0.5])
def test_a_metric_that_gives_the_float_model_nothing_to_keep_is_refused(float_value: float) -> None:
    with pytest.raises(BuildError, match="a share of that says nothing") as caught:
        judge_metric(lambda run: 0.0, lambda feeds: {}, float_value, {})
    assert "return a number above 0" in str(caught.value)


@pytest.mark.parametrize("name", ["./mm.py:score", "mm:", ":score", "mm", "m m:score"])
def test_what_names_no_function_of_a_module_is_no_metric(name: str) -> None:
    with pytest.raises(BuildError, match="is not a metric"):
        load_metric(name)


def test_a_module_that_cannot_be_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_python.py").write_text("def score(:\n")
    (tmp_path / "raises_early.py").write_text("\nraise ValueError('no data')\n")
    with pytest.raises(BuildError, match="is not Python") as caught:
        load_metric("no_python:score")
    assert "no_python.py, line 1" in str(caught.value)
    with pytest.raises(
        BuildError, match="raised ValueError when it was imported: no data"
    ) as caught:
        load_metric("raises_early:score")
    assert "raises_early.py, line 2" in str(caught.value)


def test_a_metric_may_change_the_outputs_that_it_gets() -> None:
    given: Outputs = {"y": np.ones(3, np.float32)}
    given["y"].setflags(write=False)

    def centred(run: Run) -> float:
        outputs = run({})["y"]
        outputs[0] = 5.0
        return float(outputs.size)

    assert evaluate_metric(centred, lambda _feeds: given) == 3.0
    assert given["y"].tolist() == [1.0, 1.0, 1.0], "what is remembered stays as it was"


def test_inputs_that_the_model_does_not_take_are_the_metrics_and_not_the_samples() -> None:
    def misfeeding(run: Run) -> float:
        return float(run({"no": np.zeros(1)})["y"].size)

    def run(feeds: dict[str, np.ndarray]) -> Outputs:
        raise BuildError("the float model does not run on a sample", remedy="remove the sample")

    with pytest.raises(BuildError) as caught:
        evaluate_metric(misfeeding, run)
    assert "gave run(feeds) 'no', and the float model does not run" in caught.value.problem
    assert "test_user_metric.py, line" in str(caught.value.found_in)
    assert "names of the model's inputs" in str(caught.value.remedy)


def test_a_closure_has_the_name_that_it_was_given_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closures.py").write_text(
        "from functools import partial\n"
        "def of(n):\n    def score(run):\n        return n\n    return score\n"
        "half, third = of(.5), partial(of(.3))\n"
    )
    assert metric_name(load_metric("closures:half")) == "closures:half"
    assert metric_name(load_metric("closures:third")) == "closures:third"
    assert metric_name(load_metric("closures:of")) == "closures:of"


@pytest.mark.parametrize(
    ("metric", "is_blind"),
    [
        (lambda run: 0.9, True),
        (lambda run: 1.0 + 0.0 * float(run({"x": np.ones(4)})["y"].sum()), True),
        (lambda run: _share_of_right(run, 4), False),
        (lambda run: _share_of_right(run, 1), False),
        (lambda run: _fussy(run), False),
    ],
)
def test_a_metric_that_sees_no_outputs_is_weak_evidence(
    metric: Callable[[Run], float], is_blind: bool
) -> None:
    def run(feeds: dict[str, np.ndarray]) -> Outputs:
        return {"y": feeds["x"]}

    doubts = doubt_metric(metric, run, evaluate_metric(metric, run))
    assert bool(doubts) == is_blind
    assert all("it does not see what a model answers. To settle it: " in one for one in doubts)


def _share_of_right(run: Run, width: int) -> float:
    samples = list(np.eye(9, dtype=np.float32)) if width > 1 else list(np.arange(9.0)[:, None])
    return float(np.mean([np.array_equal(run({"x": x})["y"], x) for x in samples]))


def _fussy(run: Run) -> float:
    outputs = run({"x": np.arange(9.0)})["y"]
    if np.any(np.diff(outputs) < 0.0):
        raise ValueError("no order")
    return 1.0
