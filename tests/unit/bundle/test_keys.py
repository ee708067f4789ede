"""Keys are made, kept and read so that each mistake has its own words."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from edgepack.bundle.keys import (
    CURVES,
    PASSPHRASE_VARIABLE,
    curve_name,
    generate_key,
    is_open_to_others,
    key_id,
    load_private_key,
    load_public_key,
    write_key_pair,
)
from edgepack.bundle.signature import sign_folder
from edgepack.bundle.verify import verify_folder
from edgepack.errors import SignatureError


@pytest.mark.parametrize("curve", CURVES)
def test_a_key_of_every_curve_signs_and_verifies(bundle: Path, tmp_path: Path, curve: str) -> None:
    private, public = write_key_pair(generate_key(curve), tmp_path / "release")
    sign_folder(bundle, load_private_key(private))
    key = load_public_key(public)
    assert curve_name(key) == curve
    assert verify_folder(bundle, [key]).signed.key_id == key_id(key)


def test_a_private_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    private, _ = write_key_pair(generate_key(), tmp_path / "release")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_a_plain_key_that_others_may_read_is_told_apart(tmp_path: Path) -> None:
    plain, public = write_key_pair(generate_key(), tmp_path / "plain")
    encrypted, _ = write_key_pair(generate_key(passphrase=b"right"), tmp_path / "encrypted")
    assert not is_open_to_others(plain)
    plain.chmod(0o640)
    encrypted.chmod(0o644)
    assert is_open_to_others(plain)
    assert not is_open_to_others(encrypted)
    assert not is_open_to_others(public), "a public key is for everybody"
    assert not is_open_to_others(tmp_path / "missing.key")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    private, _ = write_key_pair(generate_key(), tmp_path / "release")
    before = private.read_bytes()
    with pytest.raises(SignatureError, match="never overwritten"):
        write_key_pair(generate_key(), tmp_path / "release")
    assert private.read_bytes() == before


def test_an_encrypted_key_wants_the_right_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = write_key_pair(generate_key(passphrase=b"right"), tmp_path / "release")
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    with pytest.raises(SignatureError, match="encrypted and there is no passphrase"):
        load_private_key(private)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong")
    with pytest.raises(SignatureError, match="passphrase does not open") as caught:
        load_private_key(private)
    assert caught.value.remedy == f"set {PASSPHRASE_VARIABLE} to the one that it was encrypted with"
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "right")
    assert load_private_key(private).key_size == 256


def test_a_passphrase_in_the_environment_does_not_disturb_a_plain_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = write_key_pair(generate_key(), tmp_path / "release")
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "any")
    assert load_private_key(private).key_size == 256


def test_the_two_keys_are_not_taken_for_each_other(tmp_path: Path) -> None:
    private, public = write_key_pair(generate_key(), tmp_path / "release")
    with pytest.raises(SignatureError, match="a public key, and a private key is needed"):
        load_private_key(public)
    with pytest.raises(SignatureError, match="this is a private key"):
        load_public_key(private)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\nx\n"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SignatureError, match="no PEM public key"):
        load_public_key(path)


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    for load in (load_private_key, load_public_key):
        with pytest.raises(SignatureError, match="No such file") as caught:
            load(tmp_path / "none")
        assert caught.value.remedy == "edgepack keys generate -o release"


def test_kinds_of_keys_that_the_format_lacks_are_refused(tmp_path: Path) -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256K1())):
        (tmp_path / "key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (tmp_path / "pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        for load, name in ((load_private_key, "key"), (load_public_key, "pub")):
            with pytest.raises(SignatureError, match="does not have") as caught:
                load(tmp_path / name)
            assert "P-256, P-384, P-521" in (caught.value.remedy or "")


def test_an_unknown_curve_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="unknown curve 'P-224'"):
        generate_key("P-224")
