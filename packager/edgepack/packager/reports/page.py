"""The report as one HTML page that needs no other file, no script and no network."""

from functools import cache
from importlib import resources

import jinja2

from edgepack.bundle.accuracy_words import describe_float
from edgepack.packager.metrics.tensor_ranges import OUTLIER_FACTOR
from edgepack.packager.number_format import (
    format_bytes,
    format_metric,
    format_milliseconds,
    format_percent,
    format_placement,
    format_round_bytes,
    format_size_change,
)
from edgepack.packager.reports import bars, plot, reasons, views
from edgepack.packager.reports.compiled_templates import CompiledTemplates
from edgepack.packager.reports.report import Report, latency_text, speed_text

_FOLDER = "edgepack.packager.reports"
_PAGE = "report.html.jinja"
_PARTS = (_PAGE, "variant.html.jinja", "report.css")


def render_report(report: Report) -> str:
    """The report as one HTML page that needs no other file and no network."""
    return _template().render(report=report)


@cache
def _template() -> jinja2.Template:
    """The page's template, compiled once: a build renders it twice."""
    folder = resources.files(_FOLDER)
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(
            {name: (folder / name).read_text(encoding="utf-8") for name in _PARTS}
        ),
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
        bar=bars.bar,
        depth=bars.depth,
        depth_floor=bars.depth_floor,
        depth_grid=bars.depth_grid,
        describe_float=describe_float,
        explain=reasons.explain,
        explain_refusal=reasons.explain_refusal,
        format_placement=format_placement,
        gauge=bars.gauge,
        group_left=views.group_left,
        is_float_instead=reasons.is_float_instead,
        holds=views.holds,
        judged_by=views.judged_by,
        latency_points=views.latency_points,
        more_ranges=views.more_ranges,
        most_ranges=views.MOST_RANGES,
        noisiest=views.noisiest,
        notable_ranges=views.notable_ranges,
        outlier_count=views.outlier_count,
        outlier_factor=OUTLIER_FACTOR,
        is_off_scale=plot.is_off_scale,
        plot=plot.plot,
        range_bar=bars.range_bar,
        shared_prefix=views.shared_prefix,
        size_points=views.size_points,
        winner=views.winner,
        verdict=reasons.sum_up,
        worst_layers=views.worst_layers,
    )
    return environment.get_template(_PAGE)
