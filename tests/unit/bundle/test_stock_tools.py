"""The stock `model_signing` tool and edgepack accept and refuse the same signatures."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgepack.bundle.keys import PublicKey, generate_key, load_private_key, write_key_pair
from edgepack.bundle.signature import sign_folder, verify_envelope
from edgepack.bundle.verify import verify_folder
from edgepack.errors import SignatureError

pytestmark = pytest.mark.skipif(not find_spec("model_signing"), reason="needs model-signing")


def stock(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "model_signing", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def stock_verify(bundle: Path, public: Path) -> subprocess.CompletedProcess[str]:
    return stock(
        "verify", "key", "--signature", bundle / "model.sig", "--public_key", public, bundle
    )


@pytest.mark.parametrize("curve", ["P-256", "P-384", "P-521"])
def test_the_stock_tool_verifies_what_edgepack_signs(
    bundle: Path, tmp_path: Path, curve: str
) -> None:
    private, public = write_key_pair(generate_key(curve), tmp_path / "release")
    sign_folder(bundle, load_private_key(private), name="digits-1.2.0")
    done = stock_verify(bundle, public)
    assert done.returncode == 0, done.stderr
    assert "Verification succeeded" in done.stdout


def test_the_stock_tool_refuses_one_changed_byte_too(bundle: Path, key_prefix: Path) -> None:
    content = bytearray((bundle / "model/cpu/weights.bin").read_bytes())
    content[-1] ^= 1
    (bundle / "model/cpu/weights.bin").write_bytes(content)
    done = stock_verify(bundle, key_prefix.with_suffix(".pub"))
    assert done.returncode != 0
    assert "model/cpu/weights.bin" in done.stderr + done.stdout


def test_edgepack_verifies_what_the_stock_tool_signs(
    bundle: Path, key_prefix: Path, public_key: PublicKey
) -> None:
    ours = verify_folder(bundle, [public_key])
    (bundle / "model.sig").unlink()
    done = stock(
        "sign", "key", "--signature", bundle / "model.sig",
        "--private_key", key_prefix.with_suffix(".key"), bundle,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = verify_folder(bundle, [public_key])
    assert (theirs.digest, theirs.signed.files) == (ours.digest, ours.signed.files)
    with (bundle / "report.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(SignatureError, match=r"report\.json"):
        verify_folder(bundle, [public_key])


def test_both_put_a_folder_before_a_file_whose_name_begins_with_the_folders(
    bundle: Path, key_prefix: Path, public_key: PublicKey
) -> None:
    (bundle / "model-card.md").write_text("before 'model/' by letters, behind it by parts")
    ours = sign_folder(bundle, load_private_key(key_prefix.with_suffix(".key")))
    (bundle / "model.sig").unlink()
    done = stock(
        "sign", "key", "--signature", bundle / "model.sig",
        "--private_key", key_prefix.with_suffix(".key"), bundle,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = verify_envelope((bundle / "model.sig").read_bytes(), [public_key])
    assert theirs.digest == ours
    assert list(theirs.files)[-3:] == ["model/qnn-htp/model.onnx", "model-card.md", "report.json"]


def test_edgepack_refuses_what_the_stock_tool_was_told_to_ignore(
    bundle: Path, key_prefix: Path, public_key: PublicKey
) -> None:
    (bundle / "model.sig").unlink()
    stock(
        "sign", "key", "--signature", bundle / "model.sig",
        "--private_key", key_prefix.with_suffix(".key"),
        "--ignore-paths", bundle / "hooks", bundle,
    )  # fmt: skip
    (bundle / "hooks/before-activate").write_text("#!/bin/sh\nevil\n")
    assert stock_verify(bundle, key_prefix.with_suffix(".pub")).returncode == 0
    with pytest.raises(SignatureError, match="leaves out 'hooks'"):
        verify_folder(bundle, [public_key])
