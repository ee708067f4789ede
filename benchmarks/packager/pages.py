"""Where the results stand in the project: two files a kind of CPU, and README.md's tables."""

from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.packager.document import document
from benchmarks.packager.readme import put_into
from benchmarks.packager.records import Results, encode_results
from benchmarks.tasks.places import ROOT
from edgepack.durable import write_file

PAGES = ROOT / "docs" / "benchmarks"
"""Holds `KIND.json`, every measurement, and `KIND.md`, the same to read; see `Host.kind`."""

README = ROOT / "README.md"


def read_pages() -> list[Results]:
    """What was measured on each kind of CPU, those with VNNI first."""
    return in_order(
        msgspec.json.decode(path.read_bytes(), type=Results) for path in PAGES.glob("*.json")
    )


def in_order(pages: Iterable[Results]) -> list[Results]:
    """Results in the order in which README.md shows them."""
    return sorted(pages, key=lambda results: (not results.host.has_vnni, results.host.kind))


def write_pages(pages: Sequence[Results]) -> None:
    """Writes the pages of every kind of CPU that is given, and the tables of all of them."""
    PAGES.mkdir(exist_ok=True)
    for results in pages:
        path = PAGES / results.host.kind
        write_file(path.with_suffix(".json"), encode_results(results))
        write_file(path.with_suffix(".md"), document(results).encode())
    text = put_into(README.read_text(encoding="utf-8"), in_order(pages))
    write_file(README, text.encode())
