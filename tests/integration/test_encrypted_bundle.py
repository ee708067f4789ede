"""An encrypted bundle serves on its device, and the disk shows no weights."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.runtime.plain_files import MEMORY_VARIABLE
from edgepack.agent.serving.model import open_model
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import generate_key, write_key_pair
from tests.simulators import warm_programs
from tests.simulators.certificates import issue, make_authority
from tests.simulators.device import Device
from tests.simulators.plain_weights import secrets, shows
from tests.unit.packager_io.models import save, small_cnn, write_stack


def _run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        [sys.executable, "-m", *map(str, words)], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model as a plain bundle and as a bundle encrypted to cam-1's certificate."""
    folder = tmp_path_factory.mktemp("material")
    save(small_cnn(batch=1), folder / "small.onnx")
    write_stack(folder / "samples.npz", 12)
    authority = make_authority(folder, "fleet")
    for name in ("cam-1", "cam-2"):
        issue(folder, name, authority, name)
    write_key_pair(generate_key(), folder / "release")
    for output, more in (("plain", ()), ("secret", ("--encrypt-to", "cam-1.pem"))):
        done = _run(
            folder,
            *("edgepack.cli", "build", "small.onnx", "--profile", "fp32", "--version", "1.0.0"),
            *("--calibration", "samples.npz", "--key", "release.key", "-o", output, *more),
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder in memory for this test alone."""
    folder = Path(tempfile.mkdtemp(prefix="edgepack-test-", dir="/dev/shm"))
    monkeypatch.setenv(MEMORY_VARIABLE, str(folder))
    yield folder
    shutil.rmtree(folder)


def test_the_bundle_and_the_state_folder_show_nothing_while_the_model_serves(
    material: Path, tmp_path: Path, memory: Path
) -> None:
    pieces = secrets(material / "small.onnx", material / "plain" / "golden" / "golden.npz")
    assert len(pieces) > 10
    assert shows(material / "plain", pieces), "the test finds what it looks for"
    assert not shows(material / "secret", pieces)
    assert b'"reference":' in (material / "plain" / "manifest.json").read_bytes()
    assert b'"reference":[]' in (material / "secret" / "manifest.json").read_bytes()
    shown = _run(material, "edgepack.cli", "inspect", "secret", "--key", "release.pub")
    assert "encrypted to: 1 recipient: " in shown.stdout, shown.stderr

    key = material / "cam-1.key"
    device = Device(tmp_path, "mqtt://127.0.0.1:1", material / "release.pub", decryption_key=key)
    words = ("edgepack.agent.cli", "install", material / "secret", "--config", device.config)
    done = _run(tmp_path, *words, "--soak", "0")
    assert done.returncode == 0, done.stderr
    assert "golden samples" in done.stdout + done.stderr

    golden = read_golden(material / "plain" / "golden" / "golden.npz")
    with open_model("small", device.state_dir) as model:
        outputs = model.run(golden.inputs[0])
        assert not shows(device.state_dir, pieces)
        assert not list(memory.iterdir())
    assert not (device.state_dir / "captured").exists(), "no input is kept unless it is asked for"
    for name, expected in golden.outputs[0].items():
        assert np.allclose(outputs[name].astype(float), expected.astype(float), atol=1e-4)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("cam-2.key", "the bundle is encrypted to others: this device's key"),
        (None, "the bundle is encrypted, and this device has no key"),
    ],
)
def test_another_device_refuses_it_before_anything_is_fetched(
    material: Path, tmp_path: Path, key: str | None, said: str
) -> None:
    device = Device(
        tmp_path,
        "mqtt://127.0.0.1:1",
        material / "release.pub",
        decryption_key=material / key if key else None,
    )
    words = ("edgepack.agent.cli", "install", material / "secret", "--config", device.config)
    done = _run(tmp_path, *words, "--soak", "0")
    assert done.returncode == 1
    assert "(REJECTED)" in done.stderr
    assert said in done.stderr
    assert not list(device.state_dir.glob("slots/*/model/*/*"))
