"""Pages from templates: everything is escaped, and nothing on a page comes from elsewhere.

Text from devices, bundles and users is shown as text, with invisible characters written out. The
security policy lets a browser load our own style and script and nothing else.
"""

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup
from starlette.responses import Response

from edgepack.fleet.dashboard import plots
from edgepack.fleet.documents import wording
from edgepack.fleet.documents.releases import full_title, title
from edgepack.text import counted, printable
from edgepack.wire.drift_words import drift_lines

_PACKAGE = "edgepack.fleet.dashboard"
_TEMPLATES = (
    *("base", "parts", "overview", "devices", "device", "rollouts", "rollout", "act", "start"),
    *("models", "model", "report", "login", "login_done", "problem", "rollout_report"),
)
ASSETS = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Of a bundle's report: whoever made the bundle wrote it, so it runs nothing and reaches nobody."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TONES = {
    "COMMITTED": "good",
    "FINISHED": "good",
    "PREPARING": "go",
    "RUNNING": "go",
    "WORKING": "go",
    "OFFERED": "go",
    "PAUSED": "warn",
    "SILENT": "warn",
    "FAILED": "bad",
    "ABORTED": "bad",
    "ROLLED_BACK": "bad",
    "REJECTED": "bad",
    "DEGRADED": "bad",
    "HEALING": "warn",
    "degraded": "bad",
    "failing": "bad",
    "warned": "warn",
    "updating": "go",
    "settled": "good",
    "pass": "good",
    "breach": "bad",
    "hold": "bad",
    "accepted": "warn",
    "too few": "warn",
    "no baseline": "warn",
}


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page."""
    text = _environment().get_template(f"{template}.html.jinja").render(values)
    return html(text.encode(errors="replace"), POLICY, status)


def document(template: str, **values: Any) -> str:
    """Return a self-contained page with our style."""
    style = Markup(_read("assets/dashboard.css").decode())
    found = _environment().get_template(f"{template}.html.jinja")
    return found.render(values, style=style, now=time.time())


def live_part(template: str, values: Mapping[str, Any]) -> str:
    """Return the part of a page that moves, alone."""
    found = _environment().get_template(f"{template}.html.jinja")
    return "".join(found.blocks["live"](found.new_context(dict(values))))


def html(content: bytes, policy: str, status: int = 200) -> Response:
    """Return HTML that no cache keeps."""
    headers = {**_HEADERS, "Content-Security-Policy": policy, "Cache-Control": "no-store"}
    return Response(content, status, headers, media_type="text/html")


@cache
def asset(name: str) -> Response:
    """Return our style or our script."""
    headers = {**_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_read(f"assets/{name}"), headers=headers, media_type=ASSETS[name])


def link(path: str, **asked: object) -> str:
    """Return a link within the dashboard, without empty values."""
    given = {name: value for name, value in asked.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def local_path(words: str) -> str:
    """Return a path of the dashboard as a safe link; "/" for anything else.

    Browsers read a backslash as a slash and drop line breaks, and pages write control characters
    out with a backslash. So all but the letters of a path is escaped first, and the escaped path
    is checked and shown: nothing rewrites the path afterwards.
    """
    found = quote(words.encode(errors="replace"), safe=_PATH_LETTERS)
    return found if found.startswith("/") and not found.startswith("//") else "/"


_PATH_LETTERS = "/%?=&:@+,;~"


def _read(name: str) -> bytes:
    return (resources.files(_PACKAGE) / name).read_bytes()


def _asset_link(name: str) -> str:
    return f"/assets/{name}?v={hashlib.sha256(_read(f'assets/{name}')).hexdigest()[:12]}"


def _ago(moment: float | None) -> str:
    """Return the age of a moment, in minutes or longer, so that pages do not change every
    second.
    """
    now = time.time()
    if moment is not None and 0 <= now - moment < 60:
        return "just now"
    return wording.ago(moment, now)


@cache
def _environment() -> jinja2.Environment:
    names = [f"{name}.html.jinja" for name in _TEMPLATES]
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({name: _read(f"templates/{name}").decode() for name in names}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters.update(
        ago=_ago,
        counted=counted,
        full_title=full_title,
        megabytes=wording.megabytes,
        moment=lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)),
        n=lambda value: f"{value:,}",
        percent=lambda share: f"{share:.0%}" if share in (0, 1) else f"{share:.1%}",
        segment=lambda text: quote(text, safe=""),
        short=wording.short_provider,
        stamp=lambda moment: wording.stamp(moment, time.time()),
        title_of=title,
        tone=lambda state: _TONES.get(state, ""),
    )
    environment.globals.update(
        asset=cache(_asset_link),
        details_line=wording.details_line,
        failures_line=wording.failures_line,
        drift_lines=drift_lines,
        gate_numbers=wording.gate_numbers,
        finding_lines=wording.finding_lines,
        is_live=False,
        labels_line=wording.labels_line,
        link=link,
        plots=plots,
        quiet_gates=wording.quiet_gates,
        states=wording.STATES,
        told_gates=wording.told_gates,
    )
    return environment
