"""A bundle's content key opens for its recipients, and for nobody else."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from edgepack.bundle.keys import CURVES, generate_key, key_id, load_private_key, write_key_pair
from edgepack.bundle.manifest import (
    Encryption,
    SealedKey,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.recipients import (
    load_recipient,
    load_recipients,
    open_content_key,
    seal_content_key,
)
from edgepack.errors import BundleError, DeviceError, SignatureError
from tests.simulators.certificates import issue, make_authority
from tests.unit.bundle.conftest import make_manifest

CONTENT_KEY = bytes(range(32))


@pytest.mark.parametrize("curve", CURVES)
def test_each_recipient_opens_it(tmp_path: Path, curve: str) -> None:
    paths = [write_key_pair(generate_key(curve), tmp_path / name) for name in ("one", "two")]
    recipients = [load_recipient(public) for _, public in paths]
    encryption = seal_content_key(CONTENT_KEY, [*recipients, recipients[0]])
    assert len(encryption.keys) == 2
    for private, _ in paths:
        assert open_content_key(encryption, load_private_key(private)) == CONTENT_KEY


def test_others_are_told_that_it_is_not_for_them() -> None:
    mine, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    encryption = seal_content_key(CONTENT_KEY, [other.public_key()])
    with pytest.raises(DeviceError, match="encrypted to others") as caught:
        open_content_key(encryption, mine)
    assert key_id(mine.public_key())[:12] in caught.value.problem


def test_what_was_sealed_for_another_does_not_open_under_my_name() -> None:
    mine, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    sealed = seal_content_key(CONTENT_KEY, [other.public_key()]).keys[0].sealed
    for wrong in (
        sealed,
        sealed[:-1],
        b"",
        seal_content_key(b"x", [mine.public_key()]).keys[0].sealed,
    ):
        forged = Encryption(keys=(SealedKey(recipient=key_id(mine.public_key()), sealed=wrong),))
        with pytest.raises(BundleError):
            open_content_key(forged, mine)


def test_certificates_are_recipients_and_other_files_are_not(tmp_path: Path) -> None:
    issue(tmp_path, "cam-1", make_authority(tmp_path, "fleet"), "cam-1")
    certificate, key = tmp_path / "cam-1.pem", tmp_path / "cam-1.key"
    assert key_id(load_recipient(certificate)) == key_id(load_private_key(key).public_key())
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAA\n")
    for path, said in (
        (tmp_path / "broken.pem", "no certificate"),
        (tmp_path / "nowhere.pem", "cannot read"),
        (key, "private key"),
    ):
        with pytest.raises(SignatureError, match=said):
            load_recipient(path)


def test_a_folder_of_certificates_is_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "certificates").mkdir()
    authority = make_authority(tmp_path, "fleet")
    for name in ("cam-1", "cam-2"):
        issue(tmp_path / "certificates", name, authority, name)
    found = load_recipients(tmp_path / "certificates")
    keys = [load_private_key(tmp_path / f"certificates/cam-{n}.key") for n in (1, 2)]
    assert [key_id(key) for key in found] == [key_id(key.public_key()) for key in keys]
    assert len(load_recipients(tmp_path / "certificates/cam-1.pem")) == 1
    with pytest.raises(SignatureError, match="an authority's"):
        load_recipients(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SignatureError, match="no certificate"):
        load_recipients(tmp_path / "empty")


def test_a_manifest_names_the_encrypted_files(bundle: Path) -> None:
    plain = make_manifest(bundle)
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    encryption = seal_content_key(CONTENT_KEY, [key])
    facts = replace(plain.facts, encryption=encryption)
    manifest = decode_manifest(encode_manifest(replace(plain, facts=facts)))
    assert manifest.facts.encryption == encryption
    assert manifest.is_encrypted("golden/golden.npz")
    assert not manifest.is_encrypted("hooks/before-activate")
    assert not plain.is_encrypted("golden/golden.npz")
    document = json.loads(encode_manifest(plain))
    document["additional_metadata"]["edgepack"]["format"] = 2
    with pytest.raises(BundleError, match="has format version 2, this edgepack reads 1"):
        decode_manifest(json.dumps(document).encode())
