"""A browser lays the report out: all facts are there, and nothing sticks out of a narrow page."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import MeasuredVariant, RefusedProfile, Report
from edgepack.packager.runtime.inspection import Inspection, LayerError, TensorRange
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode
from edgepack.packager.search.attempts import Attempt, SensitiveNode
from tests.unit.packager_io.reports import make_report, make_variant

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(_CHROMIUM is None, reason="chromium is not installed")

_LONG = "model/backbone/stage_4/" + "very_long_layer_name_" * 6
_MEASURE = """<script>
document.querySelectorAll("details").forEach(one => one.open = true);
const room = document.documentElement.clientWidth;
const out = [...document.querySelectorAll("main *")].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > room + 1 && !one.closest(".scroll") && !one.closest("svg");
});
document.title = JSON.stringify({
  room, page: document.documentElement.scrollWidth,
  out: out.map(one => one.tagName + "." + one.className),
  dark: getComputedStyle(document.body).backgroundColor,
  silent: [...document.querySelectorAll(".scroll")].filter(one =>
    (one.scrollWidth > one.clientWidth) !==
    getComputedStyle(one, "::before").content.includes("scroll it sideways")).length,
  labels: document.querySelectorAll("svg.plot text.label").length,
  collisions: [...document.querySelectorAll("svg.plot")].flatMap(plot => {
    const labels = [...plot.querySelectorAll("text.label")];
    const others = plot.querySelectorAll("circle, path, text.budget, text.label");
    return labels.flatMap(label => [...others].filter(other => {
      const a = label.getBoundingClientRect(), b = other.getBoundingClientRect();
      return other !== label && a.left < b.right && b.left < a.right
        && a.top + 2 < b.bottom && b.top < a.bottom - 2;
    }).map(other => label.textContent + " on " + (other.textContent || other.className.baseVal)));
  }),
  small: [...document.querySelectorAll("svg.plot text")].filter(
    one => one.getBoundingClientRect().height < 10).length,
});
</script></body>"""


def _report() -> Report:
    layers = tuple(
        LayerError(
            tensor=f"t{number}",
            node=f"{_LONG}{number}",
            op="Conv",
            is_lowered=number % 3 > 0,
            nrmse=0.001 * (number + 1),
            sqnr_db=40.0,
        )
        for number in range(150)
    )
    ranges = tuple(
        TensorRange(
            tensor=f"{_LONG}{number}",
            dtype="uint8",
            scale=0.1234567,
            zero_point=128,
            covered_low=-15.8,
            covered_high=15.7,
            seen_low=-40.0,
            seen_high=39.0,
            central_low=-3.0,
            central_high=3.0,
            clipped_share=0.01,
            outlier_factor=13.2,
        )
        for number in range(20)
    )
    inside = Inspection(sample_count=4, layers=layers, ranges=ranges)
    sensitive_nodes = (
        SensitiveNode(name=_LONG, noise=0.21),
        SensitiveNode(name="head", noise=0.02),
    )
    variant = make_variant(
        attempts=_attempts(),
        inspection=inside,
        sensitive_nodes=sensitive_nodes,
        left_nodes=(UnassignedNode(name=_LONG, op="Resize", reason="not supported: " + "x" * 90),),
        notes=("A note with a path: " + "/".join(["folder"] * 30),),
    )
    best = MeasuredVariant(
        precision="a8w8",
        size_bytes=240_000,
        accuracy=variant.accuracy,
        placement=variant.placement,
        attempts=variant.attempts,
        sensitive_nodes=sensitive_nodes,
        inspection=inside,
        left_nodes=(),
        notes=(),
    )
    refused = RefusedProfile(profile="qnn-htp", problem="keeps too little", remedy="", best=best)
    return make_report(variant, make_variant(name="other"), refused=(refused,))


def _attempts() -> tuple[Attempt, ...]:
    """Return many attempts near each other, like a real search, and some far below the budget."""
    rng = np.random.default_rng(0)
    near = rng.normal((0.993, 300_000), (0.003, 30_000), (20, 2)).tolist()
    far = [(0.2, 240_000), (0.91, 240_000), (0.4, 380_000)]
    return tuple(
        Attempt(
            what=f"minmax, {number} of 112 nodes float (7% of the multiply-accumulates)",
            accuracy=min(accuracy, 1.0),
            size_bytes=int(size_bytes),
            because="came next",
            float_nodes=number,
            latency_ms=2.0 + size_bytes / 1e6,
            is_best=number == 8,
        )
        for number, (accuracy, size_bytes) in enumerate([*far, *near], start=1)
    )


def _lay_out(folder: Path, width: int, *options: str) -> tuple[dict[str, Any], str]:
    """Open the page in a browser; return the measurements and the browser's page."""
    page = folder / "report.html"
    page.write_text(render_report(_report()).replace("</body>", _MEASURE), encoding="utf-8")
    done = subprocess.run(
        (
            str(_CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--dump-dom", *options),
            f"--user-data-dir={folder / 'browser'}",
            f"--window-size={width},900",
            page.as_uri(),
        ),
        capture_output=True,
        text=True,
        timeout=550,
        check=True,
    )
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, done.stderr
    return json.loads(title.group(1)), done.stdout


def test_nothing_sticks_out_of_a_phone_s_screen(tmp_path: Path) -> None:
    measured, page = _lay_out(tmp_path, 400)
    assert measured["out"] == []
    assert measured["page"] == measured["room"], "the page itself does not scroll sideways"
    assert measured["small"] == 0, "the plots' text stays readable"
    assert measured["silent"] == 0, "a table that is wider than the screen says so, and no other"
    for fact in ("0.9950", "4.0× smaller", "9/10", "mse, 2 of 9 nodes float", "Keeps too little"):
        assert fact in page


@pytest.mark.parametrize("width", [400, 1280])
def test_no_label_of_a_plot_covers_another_or_a_marker(tmp_path: Path, width: int) -> None:
    measured, page = _lay_out(tmp_path, width)
    assert measured["collisions"] == []
    assert measured["labels"] > 10
    assert "far below the scale, drawn at its edge" in page


def test_it_follows_the_reader_s_light_or_dark(tmp_path: Path) -> None:
    light, _ = _lay_out(tmp_path, 1280)
    dark, _ = _lay_out(tmp_path, 1280, "--blink-settings=preferredColorScheme=0")
    assert light["out"] == dark["out"] == []
    assert light["silent"] == dark["silent"] == 0
    assert light["dark"] == "rgb(247, 247, 244)"
    assert dark["dark"] == "rgb(20, 23, 26)"
