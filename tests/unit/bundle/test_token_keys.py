"""Keys in a token sign bundles inside the token; each mistake has its own message. SoftHSM."""

import json
from collections.abc import Iterator
from pathlib import Path

import pkcs11
import pytest
from click.testing import CliRunner

from edgepack.bundle import keys_cli
from edgepack.bundle.keys import curve_name, key_id, load_public_key, signature_algorithm
from edgepack.bundle.pkcs11_keys import generate_token_key, open_token_key
from edgepack.bundle.pkcs11_uri import MODULE_VARIABLE, PIN_VARIABLE, parse_uri
from edgepack.bundle.signature import sign_folder
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.bundle.verify import verify_folder
from edgepack.errors import SignatureError
from tests.simulators.tokens import CONFIG_VARIABLE, MODULE, PIN, make_token, start_tokens


@pytest.fixture(scope="module")
def _tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG_VARIABLE, "")
        start_tokens(tmp_path_factory.mktemp("softhsm"))
        for label in ("release", "other", "mixed"):
            make_token(label)
        yield
        pkcs11.unload(str(MODULE))


@pytest.fixture(autouse=True)
def _surroundings(_tokens: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODULE_VARIABLE, str(MODULE))
    monkeypatch.setenv(PIN_VARIABLE, PIN)


@pytest.mark.parametrize("curve", ["P-256", "P-384"])
def test_a_key_in_a_token_signs_a_bundle(bundle: Path, curve: str) -> None:
    uri = f"pkcs11:token=release;object=signing-{curve}"
    made = generate_token_key(parse_uri(uri), curve)
    sign_folder(bundle, load_signing_key(uri))
    assert curve_name(made.public_key()) == curve
    assert verify_folder(bundle, [made.public_key()]).signed.key_id == key_id(made.public_key())


def test_a_private_key_cannot_be_read_from_the_token() -> None:
    generate_token_key(parse_uri("pkcs11:token=release;object=secret"), "P-256")
    with pkcs11.lib(str(MODULE)).get_token(token_label="release").open(user_pin=PIN) as session:
        key = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label="secret")
        with pytest.raises(pkcs11.AttributeSensitive):
            key[pkcs11.Attribute.VALUE]


def test_the_command_makes_and_shows_a_key_and_writes_what_names_it(
    tmp_path: Path, bundle: Path
) -> None:
    uri = "pkcs11:token=release;object=by-command"
    made = CliRunner().invoke(
        keys_cli.keys, ["generate", "--token", uri, "-o", str(tmp_path / "release")]
    )
    assert made.exit_code == 0, made.output
    assert "in the token" in made.output
    assert (tmp_path / "release.key").read_text() == f"{uri}\n"
    shown = CliRunner().invoke(keys_cli.keys, ["show", uri, "--json"])
    public = load_public_key(tmp_path / "release.pub")
    assert json.loads(shown.output) == {"curve": "P-256", "key_id": key_id(public)}
    sign_folder(bundle, load_signing_key(tmp_path / "release.key"))
    assert verify_folder(bundle, [public]).signed.key_id == key_id(public)
    again = CliRunner().invoke(
        keys_cli.keys, ["generate", "--token", uri, "-o", str(tmp_path / "again")]
    )
    assert "has a key 'by-command' already" in str(again.exception)
    assert not (tmp_path / "again.pub").exists()


def _problem(uri: str) -> str:
    with pytest.raises(SignatureError) as caught:
        load_signing_key(uri)
    assert PIN not in str(caught.value)
    return caught.value.problem


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _problem("pkcs11:token=nowhere;object=a") == "there is no such token"
    assert _problem("pkcs11:token=release;object=a") == "the token has no private key of that name"
    assert _problem("pkcs11:object=a") == "several tokens are there"
    assert "cannot be loaded" in _problem(f"pkcs11:object=a?module-path={tmp_path}/no.so")
    monkeypatch.setenv(PIN_VARIABLE, "1111")
    assert _problem("pkcs11:token=other;object=a") == "the PIN does not open the token"


def test_two_keys_of_one_label_are_told_apart_by_their_id() -> None:
    make = "pkcs11:token=other;object=twice;id=%0"
    first = generate_token_key(parse_uri(f"{make}1"), "P-256")
    generate_token_key(parse_uri(f"{make}2"), "P-256")
    assert _problem("pkcs11:token=other;object=twice") == "the token has several keys of that name"
    again = load_signing_key(f"{make}1").public_key()
    assert key_id(again) == key_id(first.public_key())


def test_a_public_key_that_belongs_to_another_private_key_signs_nothing() -> None:
    uri = parse_uri("pkcs11:token=mixed;object=one;id=%01")
    generate_token_key(uri, "P-256")
    generate_token_key(parse_uri("pkcs11:token=mixed;object=two;id=%02"), "P-256")
    library = pkcs11.lib(str(MODULE))
    with library.get_token(token_label="mixed").open(user_pin=PIN, rw=True) as session:
        session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label="one").destroy()
        session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label="two")[pkcs11.Attribute.ID] = b"\x01"
    key = open_token_key(uri)
    with pytest.raises(SignatureError, match="does not belong to its private key"):
        key.sign(b"data", signature_algorithm(key.public_key()))
    with library.get_token(token_label="mixed").open(user_pin=PIN, rw=True) as session:
        session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label="two").destroy()
    assert "no public key" in _problem("pkcs11:token=mixed;object=one")


def test_keys_that_the_format_does_not_have_are_refused() -> None:
    library = pkcs11.lib(str(MODULE))
    with library.get_token(token_label="other").open(user_pin=PIN, rw=True) as session:
        session.generate_keypair(pkcs11.KeyType.RSA, 2048, store=True, label="rsa")
    assert "of a kind" in _problem("pkcs11:token=other;object=rsa")
