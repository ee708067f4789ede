"""The documentation site, built strictly: the site loads nothing from another host."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site: a browser lets no page of a file write to its clipboard."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(_CHROMIUM is None, reason="chromium is not installed")
def test_what_is_copied_from_a_block_are_its_commands_alone(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"{address}/how-to/dashboard/")
        block = page.locator(".highlight").first
        assert block.inner_text().splitlines() == [
            "$ edgepack fleet login",
            "http://127.0.0.1:8600/login?code=…",
        ]
        block.get_by_title("Copy to clipboard").click()
        page.get_by_text("Copied to clipboard").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "edgepack fleet login"
        browser.close()
