"""Places of the results: two files a kind of CPU, their index, and a table in README.md."""

from collections.abc import Iterable, Sequence

from benchmarks.packager.document import document
from benchmarks.packager.readme import put_into, summary, tables
from benchmarks.packager.records import Results, encode_results
from benchmarks.tasks.places import ROOT
from edgepack.decoding import decode_json
from edgepack.durable import write_file

PAGES = ROOT / "docs" / "benchmarks"
"""Holds `KIND.json`, every measurement, and `KIND.md`, the same to read; see `Host.kind`."""

INDEX = PAGES / "README.md"
"""Holds the tables of all kinds."""

README = ROOT / "README.md"
"""Holds a summary of them."""


def read_pages() -> list[Results]:
    """Return the measurements of each kind of CPU, with VNNI first."""
    return in_order(decode_json(path.read_bytes(), Results) for path in PAGES.glob("*.json"))


def in_order(pages: Iterable[Results]) -> list[Results]:
    """Return results in the order of the index."""
    return sorted(pages, key=lambda results: (not results.host.has_vnni, results.host.kind))


def write_pages(pages: Sequence[Results]) -> None:
    """Write the pages of every given kind of CPU, their index, and README.md's table."""
    PAGES.mkdir(exist_ok=True)
    for results in pages:
        path = PAGES / results.host.kind
        write_file(path.with_suffix(".json"), encode_results(results))
        write_file(path.with_suffix(".md"), document(results).encode())
    for page, text in ((INDEX, tables(in_order(pages))), (README, summary(in_order(pages)))):
        write_file(page, put_into(page.read_text(encoding="utf-8"), text).encode())
