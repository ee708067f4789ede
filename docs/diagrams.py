"""Draws the site's Mermaid diagrams as it is built, so that no page loads a script for them.

A hook of MkDocs; see `hooks` in mkdocs.yml. A drawing takes ten seconds, so it is kept in
`docs/drawn`, under version control: `make docs` draws what has changed, and removes nothing.
"""

import hashlib
import html
import re
from importlib.metadata import version
from pathlib import Path

KEPT = Path(__file__).with_name("drawn")
_FENCE = re.compile(r'<pre class="diagram"><code>(.*?)</code></pre>', re.DOTALL)
_SETTINGS = {"htmlLabels": False, "flowchart": {"htmlLabels": False}}
"""Labels as text of the drawing: as HTML in it they would be cut where a reader's font is wider."""


def on_page_content(content: str, **_: object) -> str:
    """The page with each diagram in place of its source."""
    return _FENCE.sub(lambda fence: draw(html.unescape(fence[1])), content)


def draw(source: str) -> str:
    """A diagram as a figure of HTML.

    Args:
        source: Mermaid.
    """
    kept = KEPT / name_of(source)
    if not kept.exists():
        import mermaidx  # type: ignore[import-untyped]

        diagram = mermaidx.render(source, theme="neutral", config=_SETTINGS)
        kept.write_text(diagram.svg(), encoding="utf-8")
    return f'<figure class="diagram">{kept.read_text(encoding="utf-8")}</figure>'


def name_of(source: str) -> str:
    """Return the file name of a drawing: another version of the tool draws again."""
    identity = f"{version('mermaidx')} {_SETTINGS} {source.strip()}"
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.svg"
