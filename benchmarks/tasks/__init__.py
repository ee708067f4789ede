"""Real models that Python packages ship, each with a real job and labelled samples.

python -m benchmarks.tasks digits vad            prints the float models' metrics
python -m benchmarks.tasks --export magika       writes what `edgepack build` takes
"""

import importlib

from benchmarks.tasks.places import INSTALL_COMMAND
from benchmarks.tasks.task import Task
from edgepack.errors import BuildError

NAMES = (
    *("digits", "ocr_cls", "ocr_rec", "ocr_rec_v6", "ocr_det", "ocr_det_v6", "letters"),
    *("magika", "minilm", "vad"),
)


UNSEEN = ("ocr_det_v3", "portraits", "ocr_rec_v3", "names")
"""Models that nothing here was made with, for `make bench-unseen`."""


def load_task(name: str) -> Task:
    """Return a task by name; its packages are imported only now.

    Raises:
        BuildError: A required package is not installed.
    """
    try:
        task: Task = importlib.import_module(f"benchmarks.tasks.{name}").TASK
    except ModuleNotFoundError as error:
        raise BuildError(
            f"the benchmark needs the module {error.name}, which is not installed",
            remedy=INSTALL_COMMAND,
        ) from error
    return task
