"""Two builds' layers and ranges are compared if both recorded these."""

import json
from pathlib import Path

import msgspec
from click.testing import CliRunner

from edgepack.packager.cli.compare import compare as command
from edgepack.packager.comparison.inside import compare_inside
from edgepack.packager.comparison.reading import read_compared
from edgepack.packager.reports.report import Report, encode_report
from edgepack.packager.runtime.inspection import Inspection, LayerError, TensorRange
from tests.unit.packager_io.reports import make_report, make_variant


def _layer(tensor: str, sqnr_db: float) -> LayerError:
    return LayerError(
        tensor=tensor,
        node=f"node_{tensor}",
        op="Conv",
        is_lowered=True,
        nrmse=float(f"{10 ** (-sqnr_db / 20):.3g}"),
        sqnr_db=sqnr_db,
    )


def _range(tensor: str, high: float) -> TensorRange:
    return TensorRange(
        tensor=tensor,
        dtype="uint8",
        scale=high / 255,
        zero_point=0,
        covered_low=0.0,
        covered_high=high,
        seen_low=0.0,
        seen_high=4.0,
        central_low=0.0,
        central_high=3.0,
        clipped_share=0.0,
        outlier_factor=1.33,
    )


BEFORE = Inspection(
    sample_count=4,
    layers=(_layer("a", 40.0), _layer("b", 30.0), _layer("c", 20.0)),
    ranges=(_range("a", 4.0), _range("b", 4.0)),
)
AFTER = Inspection(
    sample_count=4,
    layers=(_layer("a", 39.0), _layer("b", 22.5), _layer("c", 25.0), _layer("new", 9.0)),
    ranges=(_range("a", 4.4), _range("b", 8.0)),
)


def test_only_clear_changes_of_what_both_have_are_told() -> None:
    found = compare_inside(BEFORE, AFTER)
    assert found is not None
    assert (found.shared_layers, found.a_median_db, found.b_median_db) == (3, 30.0, 25.0)
    assert [change.node for change in found.worse] == ["node_b"]
    assert [change.node for change in found.better] == ["node_c"]
    assert [(change.tensor, change.a_high, change.b_high) for change in found.ranges] == [
        ("b", 4.0, 8.0)
    ]


def test_what_one_side_does_not_know_is_not_compared() -> None:
    assert compare_inside(None, AFTER) is None
    assert compare_inside(BEFORE, Inspection(sample_count=0, note="too large")) is None


def _write(folder: Path, name: str, report: Report) -> str:
    path = folder / f"{name}.report.json"
    path.write_bytes(encode_report(report))
    return str(path)


def test_the_command_names_layers_and_ranges(tmp_path: Path) -> None:
    paths = [
        _write(tmp_path, name, make_report(make_variant(inspection=inspection)))
        for name, inspection in (("a", BEFORE), ("b", AFTER))
    ]
    done = CliRunner().invoke(command, paths)
    assert done.exit_code == 0, done.output
    for text in (
        "cpu: error of 3 layers: median SQNR 30.0 dB → 25.0 dB",
        "cpu: layers worse by 3 dB or more in B: node_b (30.0 dB → 22.5 dB)",
        "cpu: layers better by 3 dB or more in B: node_c (20.0 dB → 25.0 dB)",
        "cpu: ranges that are clearly wider or narrower in B: b (0…4 → 0…8)",
    ):
        assert text in done.output
    same = CliRunner().invoke(command, [paths[0], paths[0]])
    assert "SQNR" not in same.output


def test_a_report_of_an_older_release_is_still_read(tmp_path: Path) -> None:
    old = msgspec.to_builtins(make_report(make_variant(inspection=BEFORE)))
    for key in ("inspection", "sensitive_nodes", "left_nodes", "profile_sha256"):
        del old["variants"][0][key]
    for attempt in old["variants"][0]["attempts"]:
        for key in ("float_nodes", "is_best", "latency_ms"):
            del attempt[key]
    for refused in old["refused"]:
        del refused["best"]
    path = tmp_path / "old.report.json"
    path.write_text(json.dumps(old))
    (variant,) = read_compared(path).variants
    assert variant.inspection is None
    assert variant.name == "cpu"
