"""Golden pictures prove on a device how pictures are prepared: same bits, else right answers."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.preparation import prove_preparation
from edgepack.agent.runtime.probe import ProbeRequest
from edgepack.agent.runtime.probing import probe_here
from edgepack.agent.runtime.sessions import Session
from edgepack.agent.runtime.verdicts import pillow_of
from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.golden_pictures import MOST_PICTURES, golden_pictures, picture_path
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    Manifest,
    Variant,
    decode_manifest,
    encode_manifest,
    is_golden,
)
from edgepack.bundle.metadata import ChunkIndex, FileEntry, GoldenTolerance
from edgepack.errors import BundleError
from edgepack.packager.samples.golden_selection import choose_pictures
from edgepack.packager.tensors.sequence import Samples
from edgepack.pictures.prepare import prepare_picture
from edgepack.tasks.description import ModelDescription
from edgepack.wire.reports import Preparation
from tests.simulators.manifests import DIGEST, make_variant
from tests.unit.agent_runtime.examples import make_manifest, save_variant
from tests.unit.pictures.drawn import described, encoded, noise


def make_file(path: str) -> FileEntry:
    chunks = ChunkIndex(sizes=(1,), sha256=bytes(32))
    return FileEntry(path=path, size_bytes=1, sha256=DIGEST, chunks=chunks)


INPUT = described(height=8, width=8, resize="crop")


class _Bundle:
    """A bundle of a small model with four golden samples, of which three have their picture."""

    def __init__(self, folder: Path, **told: Any) -> None:
        self.folder = folder
        plain = make_variant()
        save_variant(folder, plain)
        self.session: Session = open_session(folder, plain)
        (folder / "golden" / "pictures").mkdir(parents=True)
        feeds = []
        for number in range(4):
            content = encoded(noise(20 + number, 13, seed=number), "JPEG")
            feeds.append({"x": prepare_picture(content, INPUT).tensor})
            if number < 3:
                (folder / picture_path(number, 0, ".jpg")).write_bytes(content)
        self.golden = Golden(inputs=tuple(feeds), outputs=tuple(map(self.session.run, feeds)))
        write_golden(folder / GOLDEN_FILE, self.golden)
        limits = {"y": GoldenTolerance(cosine_min=0.99, nrmse_max=0.05)}
        model = entry(folder, f"{plain.folder}/{plain.model_file}")
        facts = replace(plain.facts, tolerances=limits, files=(model,))
        self.variant: Variant = replace(plain, facts=facts)
        paths = [GOLDEN_FILE, *(picture_path(number, 0, ".jpg") for number in range(3))]
        manifest = make_manifest(self.variant)
        self.manifest: Manifest = replace(
            manifest,
            facts=replace(
                manifest.facts,
                files=tuple(entry(folder, path) for path in paths),
                description=ModelDescription(inputs=(replace(INPUT, **told),)),
            ),
        )
        (folder / MANIFEST_FILE).write_bytes(encode_manifest(self.manifest))

    def prove(self) -> Preparation | None:
        return prove_preparation(
            self.folder,
            self.manifest,
            self.variant,
            self.golden,
            self.session,
            least=2,
            limit_s=60.0,
        )


def test_pictures_that_give_the_same_bits_are_proof_without_an_inference(tmp_path: Path) -> None:
    bundle = _Bundle(tmp_path)
    bundle.session.close()
    proof = bundle.prove()
    assert proof is not None
    assert proof.right is True
    assert proof.because == "3 golden pictures: prepared here with the same bits as in the build"


def test_other_bits_are_right_if_the_answers_are(tmp_path: Path) -> None:
    """A step of 255 is what another JPEG decoder may change."""
    proof = _Bundle(tmp_path, std=(0.2501,)).prove()
    assert proof is not None
    assert proof.right is True
    assert "3 of 3 samples prepared here differ in bits, whose answers are right" in proof.because


def test_a_preparation_with_wrong_answers_makes_the_variant_wrong(tmp_path: Path) -> None:
    bundle = _Bundle(tmp_path, mean=(0.0,), color="BGR")
    proof = bundle.prove()
    assert proof is not None
    assert proof.right is False
    request = ProbeRequest(
        bundle_folder=str(tmp_path),
        variant=bundle.variant,
        timeout_s=60.0,
        golden_s=30.0,
        runs=1,
        threads=1,
    )
    result = probe_here(request)
    assert not result.right
    assert result.preparation is not None
    assert result.because == result.preparation.because
    assert (
        "3 of 3 samples prepared here differ in bits, and the answers are wrong" in result.because
    )


def test_a_device_without_pillow_says_so_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = _Bundle(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    proof = bundle.prove()
    assert proof is not None
    assert proof.right is None
    assert proof.because == "not checked: reading images needs Pillow, which is not installed"


def test_a_verdict_depends_on_pillow_only_where_pictures_are(tmp_path: Path) -> None:
    assert pillow_of(tmp_path) == ""
    _Bundle(tmp_path)
    assert pillow_of(tmp_path)[0].isdecimal()


def test_pictures_of_an_encrypted_bundle_are_encrypted_like_the_samples() -> None:
    assert is_golden("golden/pictures/0-0.png")
    assert is_golden(GOLDEN_FILE)
    assert not is_golden("golden/other")


@pytest.mark.parametrize(
    "path",
    [
        "golden/pictures/a.png",
        "golden/pictures/1-1.exe",
        "golden/pictures/1000-0.png",
        "golden/pictures/5-0/0-0.png",
    ],
)
def test_other_files_among_golden_pictures_are_refused(path: str, tmp_path: Path) -> None:
    manifest = _Bundle(tmp_path).manifest
    files = (*manifest.facts.files, make_file(path))
    hostile = replace(manifest, facts=replace(manifest.facts, files=files))
    with pytest.raises(BundleError, match="is not a golden picture"):
        decode_manifest(encode_manifest(hostile))


def test_too_many_golden_pictures_are_refused() -> None:
    files = [make_file(picture_path(number, 0, ".png")) for number in range(MOST_PICTURES + 1)]
    with pytest.raises(BundleError, match="65 golden files have"):
        golden_pictures(files, found_in="manifest.json")
    twice = [make_file(picture_path(0, 0, suffix)) for suffix in (".png", ".jpg")]
    with pytest.raises(BundleError, match="two golden files are for one sample"):
        golden_pictures(twice, found_in="manifest.json")


def test_large_pictures_are_left_out_and_arrays_have_none(tmp_path: Path) -> None:
    for name, size in (("0.jpg", 1_500_000), ("1.jpg", 900_000), ("2.jpg", 400_000)):
        (tmp_path / name).write_bytes(b"\0" * size)
    samples = Samples(
        count=3,
        read=lambda index: {"x": np.zeros(1, np.float32)},
        source="",
        pictures_of=lambda index: (tmp_path / f"{index}.jpg",),
    )
    chosen, note = choose_pictures(samples, (0, 1, 2))
    assert [path for path, _ in chosen] == ["golden/pictures/0-0.jpg", "golden/pictures/2-0.jpg"]
    assert "2 pictures of the golden samples as given" in note
    assert "--leave-out-pictures" in note
    (tmp_path / "0.jpg").write_bytes(b"\0" * 3_000_000)
    chosen, note = choose_pictures(samples, (0,))
    assert (chosen, "No golden picture proves" in note) == ((), True)
    assert choose_pictures(replace(samples, pictures_of=None), (0,)) == ((), "")
