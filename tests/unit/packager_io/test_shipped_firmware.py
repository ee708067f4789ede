"""Firmware artefacts of a bundle: named by a person, listed in the manifest, checked there."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgepack.bundle.chunks import entry
from edgepack.bundle.manifest import (
    BundleFacts,
    Firmware,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from edgepack.errors import BuildError, BundleError
from edgepack.packager.bundling.shipped_firmware import (
    check_firmware,
    copy_firmware,
    parse_firmware,
)
from tests.simulators.manifests import DIGEST, make_variant


def test_text_names_installer_board_version_and_file() -> None:
    shipped = parse_firmware("rauc/imx8:2.4.0=out/camera=1.raucb")
    assert shipped.file == Path("out/camera=1.raucb")
    assert shipped.firmware == Firmware(
        installer="rauc", compatible="imx8", version="2.4.0", file="firmware/camera=1.raucb"
    )
    assert parse_firmware("raw:1:2=x").firmware.version == "1:2"


@pytest.mark.parametrize(
    "text",
    ["", "x.raucb", "rauc:=x", "rauc:1", "rauc:1=", "/b:1=x", "rauc/:1=x", "a b:1=x", "r:é=x"],
)
def test_other_text_is_rejected_with_the_form(text: str) -> None:
    with pytest.raises(BuildError) as caught:
        parse_firmware(text)
    assert "INSTALLER[/BOARD]:VERSION=FILE" in (caught.value.remedy or "")


def test_missing_empty_and_ambiguous_artefacts_are_rejected_early(tmp_path: Path) -> None:
    for name in ("a", "b", "empty"):
        (tmp_path / name).write_bytes(b"" if name == "empty" else b"image")

    def problem(*texts: str) -> str:
        with pytest.raises(BuildError) as caught:
            check_firmware([parse_firmware(text) for text in texts])
        return caught.value.problem

    assert "missing or empty" in problem(f"rauc:1={tmp_path}/none")
    assert "missing or empty" in problem(f"rauc:1={tmp_path}/empty")
    assert "'rauc'" in problem(f"rauc:1={tmp_path}/a", f"rauc:2={tmp_path}/b")
    assert "same file name" in problem(f"rauc/x:1={tmp_path}/a", f"rauc/y:1={tmp_path}/a")
    shipped = [parse_firmware(f"rauc/x:1={tmp_path}/a"), parse_firmware(f"raw:1={tmp_path}/b")]
    check_firmware(shipped)
    (tmp_path / "bundle").mkdir()
    copied = copy_firmware(tmp_path / "bundle", shipped)
    assert [one.path for one in copied] == ["firmware/a", "firmware/b"]


GOOD = {"installer": "rauc", "version": "2.0", "file": "firmware/a"}


@pytest.mark.parametrize(
    "firmware",
    [
        [GOOD | {"file": "firmware/other"}],
        [GOOD | {"file": "golden.npz"}],
        [GOOD | {"file": "firmware/../a"}],
        [GOOD, GOOD],
        [GOOD | {"version": "2.0\nEDGEPACK_STEP=x"}],
        [GOOD | {"version": "-rf"}],
        [GOOD | {"installer": "../rauc"}],
        [GOOD | {"more": 1}],
        [GOOD | {"compatible": str(number)} for number in range(65)],
    ],
)
def test_hostile_firmware_in_a_manifest_is_rejected(
    tmp_path: Path, firmware: list[dict[str, Any]]
) -> None:
    for path in ("golden.npz", "firmware/a", "model/cpu/model.onnx"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"content")
    manifest = Manifest(
        facts=BundleFacts(
            name="ocr",
            version="1",
            release=1,
            source_sha256=DIGEST,
            files=(entry(tmp_path, "golden.npz"), entry(tmp_path, "firmware/a")),
            firmware=(msgspec.convert(GOOD, Firmware),),
        ),
        variants=(make_variant(files=(entry(tmp_path, "model/cpu/model.onnx"),)),),
    )
    document = msgspec.json.decode(encode_manifest(manifest))
    decode_manifest(msgspec.json.encode(document))
    document["additional_metadata"]["edgepack"]["firmware"] = firmware
    with pytest.raises(BundleError):
        decode_manifest(msgspec.json.encode(document))
