"""What of a user's metric a kept measurement depends on."""

import hashlib
import linecache
import math
from pathlib import Path
from typing import Any

import pytest

from edgepack.packager.search import context


class _Counted:
    def __call__(self, run: Any) -> float:
        return 1.0


def _plain(run: Any) -> float:
    return 1.0


@pytest.mark.parametrize("metric", [_plain, _Counted()])
def test_the_file_that_it_was_written_in_counts(metric: Any) -> None:
    described = context._describe_metric(metric)
    assert described.split(" ")[1] == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


@pytest.mark.parametrize("text", ["def score(run): return 1.0\n", ""], ids=["kept", "not kept"])
def test_the_text_of_a_notebooks_cell_counts_where_it_is_kept(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = "/tmp/ipykernel_1/1.py"  # names no file
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile("def score(run): return 1.0\n", cell, "exec"), names)
    if text:
        monkeypatch.setitem(linecache.cache, cell, (len(text), None, [text], cell))
    digest = hashlib.sha256(text.encode()).hexdigest() if text else ""
    assert context._describe_metric(names["score"]) == f"{__name__}:score {digest}"


def test_what_has_no_source_counts_by_its_name() -> None:
    metric: Any = math.sqrt
    assert context._describe_metric(metric) == "math:sqrt "
