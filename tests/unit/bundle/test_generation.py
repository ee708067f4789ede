"""The files and facts of a model that generates texts are checked, and a device needs the files."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.agent.update.fetching import wanted_files
from edgepack.bundle import generation
from edgepack.bundle.archive import pack, unpack
from edgepack.bundle.chunks import entry
from edgepack.bundle.generation import ASSETS, Generation
from edgepack.bundle.keys import PrivateKey, PublicKey
from edgepack.bundle.manifest import Manifest, decode_manifest, encode_manifest
from edgepack.bundle.signature import sign_folder
from edgepack.bundle.slot import verify_variant
from edgepack.bundle.verify import verify_folder
from edgepack.errors import BundleError, SignatureError
from tests.unit.bundle.conftest import make_manifest

FACTS = Generation(context=256, vocabulary=512, cache_bytes_per_token=1024, prompts=3)


def _with_assets(folder: Path, key: PrivateKey, names: tuple[str, ...] = ASSETS) -> Manifest:
    manifest = make_manifest(folder)
    for name in names:
        (folder / name).write_text(json.dumps({"name": name}))
    files = (*manifest.facts.files, *(entry(folder, name) for name in names))
    manifest = replace(manifest, facts=replace(manifest.facts, files=files, generation=FACTS))
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    sign_folder(folder, key)
    return manifest


def test_the_facts_survive_the_manifest_and_the_archive(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey, tmp_path: Path
) -> None:
    _with_assets(bundle, private_key)
    pack(bundle, tmp_path / "texts.edgepack")
    unpack(tmp_path / "texts.edgepack", tmp_path / "again")
    manifest = verify_folder(tmp_path / "again", [public_key]).manifest
    assert manifest.facts.generation == FACTS
    assert FACTS.cache_bytes == 256 * 1024
    assert {file.path for file in manifest.facts.files} >= set(ASSETS)


def test_a_device_fetches_the_files_and_does_not_serve_without_them(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    manifest = _with_assets(bundle, private_key)
    assert {file.path for file in wanted_files(manifest, ("cpu",))} >= set(ASSETS)
    digest = verify_folder(bundle, [public_key], complete=False).digest
    (bundle / "chat_template.jinja").unlink()
    with pytest.raises(SignatureError, match=r"'chat_template\.jinja' is signed but missing"):
        verify_folder(bundle, [public_key], complete=False)
    with pytest.raises(BundleError, match=r"'chat_template\.jinja' is missing"):
        verify_variant(bundle, digest, "cpu")


def test_a_changed_tokenizer_is_damage_of_the_slot(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    _with_assets(bundle, private_key)
    digest = verify_folder(bundle, [public_key]).digest
    content = (bundle / "tokenizer.json").read_bytes()
    (bundle / "tokenizer.json").write_bytes(content.replace(b"n", b"m"))
    with pytest.raises(BundleError, match=r"'tokenizer\.json' is not what was installed"):
        verify_variant(bundle, digest, "cpu")


@pytest.mark.parametrize("lost", ["genai_config.json", "tokenizer.json"])
def test_a_bundle_without_wiring_or_tokenizer_is_rejected(
    bundle: Path, private_key: PrivateKey, lost: str
) -> None:
    names = tuple(name for name in ASSETS if name != lost)
    manifest = _with_assets(bundle, private_key, names)
    with pytest.raises(
        BundleError, match=f"model is for texts, but '{lost}' is not among its files"
    ):
        decode_manifest(encode_manifest(manifest))


def test_a_tokenizer_that_is_too_large_is_rejected_with_both_sizes(
    bundle: Path, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _with_assets(bundle, private_key)
    monkeypatch.setattr(generation, "MAX_ASSET_BYTES", 25)
    with pytest.raises(BundleError, match=r"'genai_config\.json' has 29 bytes, at most 25"):
        decode_manifest(encode_manifest(manifest))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda facts: facts.update(context=0),
        lambda facts: facts.update(vocabulary=2**24 + 1),
        lambda facts: facts.update(cache_bytes_per_token=0),
        lambda facts: facts.update(prompts=-1),
        lambda facts: facts.update(engine="shell"),
        lambda facts: facts.update(command="sh"),
    ],
)
def test_facts_out_of_bounds_are_rejected(
    bundle: Path, private_key: PrivateKey, spoil: Callable[[dict[str, object]], None]
) -> None:
    document = msgspec.json.decode(encode_manifest(_with_assets(bundle, private_key)))
    spoil(document["additional_metadata"]["edgepack"]["generation"])
    with pytest.raises(BundleError, match="manifest"):
        decode_manifest(json.dumps(document).encode())
