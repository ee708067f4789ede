"""The site's diagrams are drawn: a build of a fresh clone draws none."""

import re
from pathlib import Path

from docs import diagrams

DOCS = Path(diagrams.__file__).parent
_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)


def test_each_diagram_has_its_drawing_and_no_drawing_is_left_over() -> None:
    pages = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    wanted = {diagrams.name_of(source) for page in pages for source in _FENCE.findall(page)}
    assert wanted
    assert {path.name for path in diagrams.KEPT.iterdir()} == wanted, "run `make docs`, then commit"
