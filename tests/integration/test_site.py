"""The documentation site, built strictly: it loads nothing from another host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Elements whose address a browser fetches by itself."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(_LOADING.get(tag, ""))
        if address and dict(attrs).get("rel") not in {"canonical", "next", "prev"}:
            self.addresses.append(address)


def _loads(site: Path) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        parser = _Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from ((page, address) for address in parser.addresses)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = list(_loads(site))
    assert len(loads) > 100
    assert [(page, address) for page, address in loads if "//" in address] == []


def test_no_style_loads_anything_from_another_host(site: Path) -> None:
    styles = list(site.rglob("*.css"))
    assert styles
    assert [style for style in styles if "url(http" in style.read_text(encoding="utf-8")] == []


def test_diagrams_are_drawn_and_wait_for_no_script(site: Path) -> None:
    page = (site / "explanation" / "life-cycle" / "index.html").read_text(encoding="utf-8")
    assert '<figure class="diagram"><svg' in page
    assert "OFFERED --" not in page, "the source of the diagram"
    assert 'class="mermaid"' not in "".join(
        one.read_text(encoding="utf-8") for one in site.rglob("*.html")
    )
