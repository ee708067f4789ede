"""The user's own metric, named on the command line as `module:function`."""

import contextlib
import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.profiles.schema import AccuracyBudgets, keep_of
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import OWN

Metric = Callable[[Run], float]
"""A user's own measure of quality, greater is better: takes a function that runs one inference."""

_EXAMPLE = (
    "--metric mymetric:score, with mymetric.py in the current folder and in it a "
    "score(run), which calls run(feeds) for each of its samples and returns a number, greater "
    "is better"
)

_TRY_IT = "call it with a function that runs the float model, and see that it works"
_REPAIR = "repair it: python -m py_compile and an import show the same"


def load_metric(name: str) -> Metric:
    """Import a metric; its module may lie in the current folder.

    Only the metric's own module is taken from the current folder first. Its imports are searched
    there last, so that no file stands in for a module of edgepack or of a library.

    The function's argument is `run`, which takes the inputs of an inference by name and returns the
    outputs by name; its result is a number, greater is better.

    Args:
        name: `module:function`.

    Raises:
        BuildError: There is no such module or function, or the import fails.
    """
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise BuildError(f"'{name}' is not a metric", found_in="--metric", remedy=_EXAMPLE)
    folder = Path.cwd()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        _import_from(folder, module_name.partition(".")[0])
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BuildError(
            f"the metric's module {module_name!r} cannot be imported: {error}",
            found_in="--metric",
            remedy="install what it needs, and run edgepack in the folder where it lies",
        ) from error
    except SyntaxError as error:
        raise BuildError(
            f"the metric's module {module_name!r} is not Python: {error.msg}",
            found_in=f"{error.filename}, line {error.lineno}",
            remedy=_REPAIR,
        ) from error
    except (Exception, SystemExit) as error:  # foreign code
        raise BuildError(
            f"the metric's module {module_name!r} raised {type(error).__name__} when it was "
            f"imported: {error}",
            found_in=_where(error),
            remedy=_REPAIR,
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuildError(
            f"module {module_name!r} has no function {function_name!r}",
            found_in=str(module.__file__),
            remedy=_EXAMPLE,
        )
    if "<" in getattr(function, "__qualname__", "<"):  # a closure, a partial: named as it was given
        with contextlib.suppress(AttributeError, TypeError):
            function.__module__, function.__qualname__ = module_name, function_name
    metric: Metric = function
    return metric


def _import_from(folder: Path, name: str) -> None:
    """Import a module or package of a folder, unless that name is imported already."""
    paths = (folder / f"{name}.py", folder / name / "__init__.py")
    path = next((path for path in paths if path.is_file()), None)
    spec = path and importlib.util.spec_from_file_location(name, path)
    if name in sys.modules or not spec or not spec.loader:
        return
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise


def metric_name(metric: Metric) -> str:
    """Return `module:function`, for reports."""
    return f"{metric.__module__}:{getattr(metric, '__qualname__', type(metric).__name__)}"


def evaluate_metric(metric: Metric, run: Run) -> float:
    """Call a user's metric.

    Raises:
        BuildError: The metric raised, or returned something other than a finite number.
    """
    name = metric_name(metric)
    fed: dict[str, None] = {}
    given: dict[str, None] = {}
    try:
        value = metric(_with_own_outputs(run, fed, given))
    except BuildError as error:
        if type(error) is not BuildError or not fed:  # a refusal, or an end of the time
            raise
        raise BuildError(
            f"the metric {name} gave run(feeds) {', '.join(map(repr, fed))}, and {error.problem}",
            found_in=_where(error, metric),
            remedy="arrays by the names of the model's inputs, in shapes and types of the samples",
        ) from error
    except EdgepackError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code
        raise BuildError(
            f"the metric {name} raised {type(error).__name__}: {_text_of(error)}",
            found_in=_where(error, metric),
            remedy=_TRY_IT
            + (f"; run(feeds) gave it {', '.join(map(repr, given))}" if given else ""),
        ) from error
    number = math.nan
    if not isinstance(value, str | bytes | bool | np.bool_):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise BuildError(
            f"the metric {name} returned {value!r}, which is not a finite number",
            remedy="return one number, greater for a better model",
        )
    return number


def _with_own_outputs(run: Run, fed: dict[str, None], given: dict[str, None]) -> Run:
    """Return a run with the same results as arrays that the caller may change.

    Args:
        run: Runs an inference.
        fed: Gets the names of the inputs of an inference that failed.
        given: Gets the names of the outputs, in order.
    """

    def run_and_copy(feeds: Feeds) -> Outputs:
        fed.update(dict.fromkeys(feeds))
        outputs = {name: np.array(value) for name, value in run(feeds).items()}
        fed.clear()
        given.update(dict.fromkeys(outputs))
        return outputs

    return run_and_copy


def _text_of(error: BaseException) -> str:
    """Return the text of an exception, "" if it gives none."""
    with contextlib.suppress(Exception):  # foreign code
        return str(error)
    return ""


def _where(error: BaseException, metric: Metric | None = None) -> str:
    """Return the deepest line of the user's own file, else of any file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(metric.__module__), "__file__", None) if metric else None
    mine = [frame for frame in frames if own is None or frame.filename == own]
    if not mine:
        return str(own)
    return f"{mine[-1].filename}, line {mine[-1].lineno}"


def judge_metric(metric: Metric, run: Run, float_value: float, budgets: AccuracyBudgets) -> Verdict:
    """Evaluate a candidate by the user's own metric.

    Args:
        metric: The metric.
        run: Runs the candidate.
        float_value: The float model's value.
        budgets: That of `own` is the share of `float_value` that must be kept.

    Returns:
        The verdict.

    Raises:
        BuildError: See `evaluate_metric`; or the float model's value leaves nothing to keep.
    """
    if float_value <= 0.0:
        raise BuildError(
            f"the metric {metric_name(metric)} gives the float model {float_value:g}, and a share "
            "of that says nothing",
            remedy="return a number above 0, greater for a better model: of a loss 1/(1+loss)",
        )
    value = evaluate_metric(metric, run)
    budget = float_value * keep_of(budgets, OWN)
    spare = (value - budget) / max(abs(float_value - budget), 1e-9)
    return Verdict(
        metric=metric_name(metric),
        value=value,
        float_value=float_value,
        budget=budget,
        passed=value >= budget,
        spare=spare,
        noise=0.0,
        task_kept=value / float_value,
    )


def doubt_metric(metric: Metric, float_run: Run, float_value: float) -> tuple[str, ...]:
    """Return why a metric that finds no loss is weak evidence; empty if the metric sees outputs.

    Args:
        metric: The metric.
        float_run: Runs the float model.
        float_value: Its value.
    """
    try:
        value = evaluate_metric(metric, _with_mixed_outputs(float_run))
    except BuildError:  # the metric does not take what it gets
        return ()
    if value < float_value:
        return ()
    return (
        f"the metric {metric_name(metric)} gives {value:g} to mixed outputs of other samples too, "
        "as to the float model's own: it does not see what a model answers. To settle it: a metric "
        "that calls run(feeds) for each of its samples and compares the outputs with the truth",
    )


def _with_mixed_outputs(run: Run) -> Run:
    """Return a run with the outputs of the inference before, and their values in another order."""
    before: Outputs = {}
    generator = np.random.default_rng(0)

    def run_and_mix(feeds: Feeds) -> Outputs:
        outputs = run(feeds)
        fit = before.keys() == outputs.keys() and all(
            before[name].shape == value.shape for name, value in outputs.items()
        )
        mixed = {
            name: generator.permutation(value.ravel()).reshape(value.shape)
            for name, value in (before if fit else outputs).items()
        }
        before.clear()
        before.update(outputs)
        return mixed

    return run_and_mix
