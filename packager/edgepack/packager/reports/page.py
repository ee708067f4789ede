"""The report as an HTML page without other files, scripts or network."""

from functools import cache
from importlib import resources

import jinja2

from edgepack.bundle.accuracy_words import describe_float
from edgepack.number_format import (
    format_bytes,
    format_metric,
    format_milliseconds,
    format_percent,
    format_round_bytes,
    format_size_change,
)
from edgepack.packager.metrics.tensor_ranges import OUTLIER_FACTOR
from edgepack.packager.reports import plot, reasons, views
from edgepack.packager.reports.compiled_templates import CompiledTemplates
from edgepack.packager.reports.report import Report, latency_text, speed_text

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
