"""The report as an HTML page without other files, scripts or network.

Compiled templates, kept where Python keeps its own compiled files.

To compile the report's templates takes longer than to quantize a small model.
"""

import importlib.util
import pickle
import sys
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from edgepack.bundle.accuracy_words import describe_float
from edgepack.durable import write_file
from edgepack.number_format import (
    format_bytes,
    format_metric,
    format_milliseconds,
    format_percent,
    format_round_bytes,
    format_size_change,
)
from edgepack.packager.reports import plot, reasons, views
from edgepack.packager.reports.report import Report, latency_text, speed_text
from edgepack.packager.runtime.inspection import OUTLIER_FACTOR

_FOLDER = "edgepack.packager.reports"
_PAGE = "report.html.jinja"
_PARTS = (_PAGE, "variant.html.jinja", "bars.html.jinja", "report.css")


def render_report(report: Report) -> str:
    """Return the report as an HTML page without other files or network."""
    return _template().render(report=report)


@cache
def _template() -> jinja2.Template:
    """Return the page's template, compiled once: a build renders the page twice."""
    folder = resources.files(_FOLDER)
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in _PARTS}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(parts),
        bytecode_cache=CompiledTemplates(__file__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=format_bytes,
        metric=format_metric,
        change=format_size_change,
        percent=format_percent,
        ms=format_milliseconds,
        latency=lambda variant: latency_text(variant).partition(" (")[0],
        speed=speed_text,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    environment.globals.update(
        axis_bytes=format_round_bytes,
        axis_ms=lambda value: f"{value:g} ms",
        describe_float=describe_float,
        outlier_factor=OUTLIER_FACTOR,
        plot=plot,
        reasons=reasons,
        views=views,
    )
    return environment.get_template(_PAGE)


_SUFFIX = ".jinjac"


class CompiledTemplates(jinja2.BytecodeCache):
    """Cache of compiled templates in the `__pycache__` of a module; unused if the folder cannot be
    written.

    jinja2 itself checks that cached code was made from the same template by the same version.

    Args:
        module_file: The module's `__file__`.
    """

    def __init__(self, module_file: str) -> None:
        self._folder = Path(importlib.util.cache_from_source(module_file)).parent

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket from the cache, if present."""
        try:
            with self._file(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except (OSError, EOFError, pickle.UnpicklingError):
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the bucket's content for the next process."""
        if sys.dont_write_bytecode:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            write_file(self._file(bucket), bucket.bytecode_to_string())
        except OSError:
            return  # a folder of the system's, or a full disk: Python itself goes on as well

    def _file(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}{_SUFFIX}"
