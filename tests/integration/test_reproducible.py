"""Two builds of the same inputs give the same bytes, in any surroundings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import SIGNATURE_FILE
from tests.unit.packager_io.models import save, small_cnn, write_stack

_PLAIN = '[profile]\nname = "plain"\nextends = "cpu"\n[gates]\nfloat_instead = []\n'
"""`cpu` publishes the float model where that is faster, which for a small model is luck."""

_SEARCHED = """
[profile]
name = "searched"
extends = "vitisai-xint8"
[[pass]]
name = "quantize"
ranges = ["minmax"]
max_float_share = 1.0
[gates.accuracy.values]
keep = 0.999995
"""
"""A budget that only a search can hold: one node after another returns to float."""

_SURROUNDINGS = (
    {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "TZ": "UTC"},
    {"PYTHONHASHSEED": "977", "OMP_NUM_THREADS": "3", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a model, samples, profiles and a key."""
    folder = tmp_path_factory.mktemp("material")
    save(small_cnn(batch=1), folder / "small.onnx")
    write_stack(folder / "samples.npz", 24)
    (folder / "plain.toml").write_text(_PLAIN)
    (folder / "searched.toml").write_text(_SEARCHED)
    (folder / "edgepack.toml").write_text('[outputs.scores]\ntask = "values"\n')
    write_key_pair(generate_key(), folder / "release")
    return folder


def _build(material: Path, folder: Path, number: int, profiles: tuple[str, ...]) -> Path:
    """Build in another process, place, time zone, language, mask and number of threads."""
    elsewhere = folder / f"somewhere else {number}"
    elsewhere.mkdir()
    temporary = folder / f"temporary-{number}"
    temporary.mkdir()
    output = elsewhere / "small-1.0.0"
    words = [word for profile in profiles for word in ("--profile", profile)]
    masked = f'umask {("022", "077")[number]}; exec "$@"'
    done = subprocess.run(
        (
            *("sh", "-c", masked, "--", sys.executable, "-m", "edgepack.cli", "build"),
            *(str(material / "small.onnx"), *words),
            *("--config", str(material / "edgepack.toml")),
            *("--calibration", str(material / "samples.npz")),
            *("--key", str(material / "release.key"), "-o", str(output)),
        ),
        cwd=elsewhere,
        env={**os.environ, **_SURROUNDINGS[number], "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    left = {path.name for path in temporary.iterdir()} - {".ses"}  # ONNX Runtime's own
    assert not left, "nothing stays in the temporary folder"
    return output


@pytest.mark.parametrize("profiles", [("plain.toml", "searched.toml"), ("qnn-htp",)])
def test_builds_are_equal_but_for_the_signature(
    material: Path, tmp_path: Path, profiles: tuple[str, ...]
) -> None:
    named = tuple(str(material / name) if name.endswith("toml") else name for name in profiles)
    first, second = (_build(material, tmp_path, number, named) for number in (0, 1))
    names = [
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        for folder in (first, second)
    ]
    assert names[0] == names[1]
    for name in names[0]:
        if name != SIGNATURE_FILE:
            assert (first / name).read_bytes() == (second / name).read_bytes(), name
    if "searched.toml" in profiles:
        report = (first / "report.json").read_text()
        assert "float" in report, "the search has returned nodes to float"
