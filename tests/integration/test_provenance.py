"""A bundle of `edgepack build` has provenance, and devices accept the bundle like any other."""

import json
import sys
from pathlib import Path

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import GOLDEN_FILE
from edgepack.packager.provenance.minimum_elements import count_elements
from tests.simulators import warm_programs
from tests.unit.packager_io.models import save, small_cnn, write_stack
from tests.unit.packager_io.test_provenance import check_schema

_CONFIG = """
[model]
version = "1.0.0"
[about]
license = "Apache-2.0"
producer = "Example Vision"
[datasets.meters]
used_for = "calibration"
license = "CC-BY-4.0"
"""


def _edgepack(folder: Path, *words: str) -> str:
    done = warm_programs.run(
        (sys.executable, "-m", "edgepack.cli", *words),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_built_bundle_tells_where_it_came_from(tmp_path: Path) -> None:
    save(small_cnn(batch=1), tmp_path / "small.onnx")
    write_stack(tmp_path / "samples.npz", 12)
    (tmp_path / "edgepack.toml").write_text(_CONFIG)
    write_key_pair(generate_key(), tmp_path / "release")
    asked = ("--profile", "fp32", "--calibration", "samples.npz", "--key", "release.key")
    builder = ("--builder-id", "https://ci.example.com/edgepack")
    words = ("build", "small.onnx", *asked, *builder, "-o", "small-1.0.0.edgepack")
    built = json.loads(_edgepack(tmp_path, *words, "--json"))
    assert "Dataset sensitivity" in built["bill_of_materials_lacks"]

    said = _edgepack(tmp_path, "verify", "small-1.0.0.edgepack", "--key", "release.pub")
    assert "built by:      https://ci.example.com/edgepack" in said
    assert "license:       Apache-2.0" in said
    shown = json.loads(_edgepack(tmp_path, "inspect", "small-1.0.0.edgepack", "--json"))
    roles = [each["role"] for each in shown["provenance"]["dependencies"]]
    assert roles == ["source model", "calibration samples", "evaluation samples", "profile", ""]
    assert shown["bill_of_materials"]["datasets"] == ["meters", "evaluation samples"]

    _edgepack(tmp_path, "unpack", "small-1.0.0.edgepack", "-o", "small")
    bill = (tmp_path / "small" / "ml-bom.cdx.json").read_bytes()
    check_schema(bill)
    assert count_elements(json.loads(bill))[1] == tuple(built["bill_of_materials_lacks"])
    statement = json.loads((tmp_path / "small" / "provenance.json").read_bytes())
    assert {each["name"] for each in statement["subject"]} >= {GOLDEN_FILE, "ml-bom.cdx.json"}
    assert str(tmp_path) not in json.dumps(statement)
