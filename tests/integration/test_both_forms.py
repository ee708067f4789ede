"""A bundle with both forms of a model; each device selects the faster form."""

from pathlib import Path

import onnx
import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.packager import build
from edgepack.packager.pipeline.check_request import with_float_forms
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.search.combinations import combine
from tests.unit.packager_maps.colours import draw_pictures, draw_segmenter


def test_a_bundle_holds_both_forms_and_the_agent_takes_the_faster_one(tmp_path: Path) -> None:
    onnx.save(draw_segmenter(), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=["cpu"],
        prefer="device",
        calibration=draw_pictures(60),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
    )
    assert list(result.variants) == ["cpu", "cpu-float"]
    lowered, whole = result.variants.values()
    assert (lowered.precision, whole.precision) == ("a8w8", "fp32")
    assert not lowered.float_because
    manifest = decode_manifest((tmp_path / "colours-1.0.0" / MANIFEST_FILE).read_bytes())
    assert [variant.name for variant in manifest.variants] == ["cpu", "cpu-float"]
    assert all(entry.rehearsal and entry.rehearsal.ran for entry in (lowered, whole))
    assert "cpu-float on CPUExecutionProvider" in result.report.choice
    assert "cpu on CPUExecutionProvider" in result.report.choice


def test_where_nothing_quantized_is_right_the_float_model_is_there_once(tmp_path: Path) -> None:
    profile = tmp_path / "strict.toml"
    profile.write_text(
        '[profile]\nname = "strict"\nextends = "cpu"\nsummary = "nothing is right"\n'
        "[gates.accuracy.any]\nkeep = 1.0\n"
    )
    onnx.save(draw_segmenter(), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=[profile],
        prefer="device",
        calibration=draw_pictures(20),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
    )
    assert list(result.variants) == ["strict"]
    assert result.variants["strict"].float_because


@pytest.mark.parametrize(
    ("name", "forms"),
    [("cpu", ["cpu", "cpu-float"]), ("fp32", ["fp32"]), ("qnn-htp", ["qnn-htp"])],
)
def test_only_what_may_be_published_as_float_has_a_float_form(name: str, forms: list[str]) -> None:
    both = with_float_forms(combine([name], (), {"gates": {"prefer": "device"}}))
    assert [entries[0].profile.name for entries in both] == forms
    assert load_profile(name).sha256 != both[0][0].profile.sha256
