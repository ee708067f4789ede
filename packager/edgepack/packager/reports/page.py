"""The report as one HTML page that needs no other file, no script and no network."""

from functools import cache
from importlib import resources

import jinja2

from edgepack.packager.reports.numbers import (
    format_bytes,
    format_metric,
    format_placement,
    format_size_change,
)
from edgepack.packager.reports.report import Report, latency_text

_TEMPLATE = "report.html.jinja"


def render_report(report: Report) -> str:
    """The report as one HTML page that needs no other file and no network."""
    return _template().render(
        report=report,
        largest_bytes=max(
            [report.model.size_bytes, *(variant.size_bytes for variant in report.variants)]
        ),
        format_placement=format_placement,
    )


@cache
def _template() -> jinja2.Template:
    """The page's template, compiled once: a build renders it twice."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        bytes=format_bytes,
        metric=format_metric,
        change=format_size_change,
        latency=latency_text,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
    )
    text = (resources.files("edgepack.packager.reports") / _TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(text)
