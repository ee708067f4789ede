"""The user's own metric, named on the command line as `module:function`."""

import importlib
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.judging.accuracy import Verdict
from edgepack.packager.judging.measure import Run
from edgepack.packager.profile.schema import AccuracyGate

Metric = Callable[[Run], float]
"""A user's own measure of quality, greater is better: takes a function that runs one inference."""

_EXAMPLE = (
    "--metric mymetric:score, with mymetric.py in the current folder and in it a "
    "score(run), which calls run(feeds) for each of its samples and returns a number, greater "
    "is better"
)


def load_metric(name: str) -> Metric:
    """Imports a metric; its module may lie in the current folder.

    The function takes `run`, which takes the inputs of one inference by name and returns the
    outputs by name, and returns a number, greater is better.

    Args:
        name: `module:function`.

    Raises:
        BuildError: There is no such module or function, or it cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise BuildError(f"'{name}' is no metric", found_in="--metric", remedy=_EXAMPLE)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise BuildError(
            f"the metric's module {module_name!r} cannot be imported: {error}",
            found_in="--metric",
            remedy="install what it needs, and run edgepack in the folder where it lies",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuildError(
            f"module {module_name!r} has no function {function_name!r}",
            found_in=str(module.__file__),
            remedy=_EXAMPLE,
        )
    metric: Metric = function
    return metric


def metric_name(metric: Metric) -> str:
    """`module:function`, for reports."""
    return f"{metric.__module__}:{getattr(metric, '__qualname__', type(metric).__name__)}"


def evaluate_metric(metric: Metric, run: Run) -> float:
    """Calls a user's metric.

    Raises:
        BuildError: It raised, or returned something that is no finite number.
    """
    name = metric_name(metric)
    try:
        value = metric(run)
    except EdgepackError:
        raise
    except Exception as error:  # foreign code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise BuildError(
            f"the metric {name} raised {type(error).__name__}: {error}",
            found_in=f"{where.filename}, line {where.lineno}",
            remedy="call it with a function that runs the float model, and see that it works",
        ) from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BuildError(
            f"the metric {name} returned {value!r}, which is no finite number",
            remedy="return one number, greater for a better model",
        )
    return number


def judge_metric(metric: Metric, run: Run, float_value: float, gate: AccuracyGate) -> Verdict:
    """Judges a candidate by the user's own metric.

    Args:
        metric: The metric.
        run: Runs the candidate.
        float_value: The float model's value.
        gate: Its `user_metric_kept_min` is the share of `float_value` that must be kept.

    Returns:
        The verdict.

    Raises:
        BuildError: See `evaluate_metric`.
    """
    value = evaluate_metric(metric, run)
    budget = float_value * gate.user_metric_kept_min
    spare = (value - budget) / max(abs(float_value - budget), 1e-9)
    return Verdict(
        metric=metric_name(metric),
        value=value,
        float_value=float_value,
        budget=budget,
        passed=value >= budget,
        spare=spare,
        noise=0.0,
    )
