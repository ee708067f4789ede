"""`edgepack build` signs with a key inside a token, and stock tools accept the signature."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.bundle.pkcs11_uri import MODULE_VARIABLE
from tests.simulators import warm_programs
from tests.simulators.tokens import CONFIG_VARIABLE, MODULE, PIN, make_token, start_tokens
from tests.unit.packager_io.models import save, small_cnn

_URI = "pkcs11:token=builds;object=signing"


@pytest.fixture(autouse=True)
def _token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    (tmp_path / "softhsm").mkdir()
    start_tokens(tmp_path / "softhsm")
    make_token("builds")


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        (sys.executable, "-W", "ignore", "-m", *words),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {MODULE_VARIABLE: str(MODULE)},
    )


def test_a_bundle_is_signed_inside_a_token(tmp_path: Path) -> None:
    save(small_cnn(batch=1), tmp_path / "small.onnx")
    (tmp_path / "pin").write_text(f"{PIN}\n")
    uri = f"{_URI}?pin-source=file:{tmp_path}/pin"
    made = _run(tmp_path, "edgepack.cli", "keys", "generate", "--token", uri, "-o", "release")
    assert made.returncode == 0, made.stderr
    asked = ("--profile", "fp32", "--calibration", "random:8", "-o", "small-1.0.0")
    built = _run(tmp_path, "edgepack.cli", "build", "small.onnx", *asked, "--key", uri)
    assert built.returncode == 0, built.stderr
    assert PIN not in built.stdout + built.stderr
    words = ("verify", "key", "--signature", "small-1.0.0/model.sig")
    stock = _run(tmp_path, "model_signing", *words, "--public_key", "release.pub", "small-1.0.0")
    assert stock.returncode == 0, stock.stderr
    again = _run(tmp_path, "edgepack.cli", "verify", "small-1.0.0", "--key", "release.pub")
    assert again.returncode == 0, again.stderr


def test_a_token_that_refuses_is_told_before_anything_is_built(tmp_path: Path) -> None:
    save(small_cnn(batch=1), tmp_path / "small.onnx")
    asked = ("--profile", "fp32", "--calibration", "random:8", "-o", "small-1.0.0")
    built = _run(tmp_path, "edgepack.cli", "build", "small.onnx", *asked, "--key", _URI)
    assert built.returncode == 1
    assert "the token wants a PIN" in built.stderr
    assert not (tmp_path / "small-1.0.0").exists()
