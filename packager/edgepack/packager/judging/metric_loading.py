"""The user's own metric, named on the command line as `module:function`."""

import importlib
import sys
from pathlib import Path

from edgepack.errors import BuildError
from edgepack.packager.judging.accuracy import Metric

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
