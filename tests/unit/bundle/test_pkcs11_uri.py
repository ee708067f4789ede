"""PKCS #11 URIs are parsed strictly, and contain no PIN."""

from pathlib import Path

import pytest

from edgepack.bundle.pkcs11_uri import (
    MODULE_VARIABLE,
    PIN_VARIABLE,
    find_module,
    is_uri,
    parse_uri,
    read_pin,
)
from edgepack.errors import SignatureError


def test_a_uri_names_token_and_key() -> None:
    uri = parse_uri(
        "pkcs11:token=My%20token;serial=12;object=release;id=%01%ff;type=private"
        "?module-path=/usr/lib/p11.so&pin-source=file:/run/pin"
    )
    assert (uri.token, uri.serial, uri.object, uri.id) == ("My token", "12", "release", b"\x01\xff")
    assert (uri.module, uri.pin_source) == ("/usr/lib/p11.so", "/run/pin")


def test_files_are_told_from_uris() -> None:
    assert is_uri("pkcs11:object=a")
    assert is_uri(Path("pkcs11:object=a"))
    assert not is_uri("release.key")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pkcs11:token=a", "names no key"),
        ("pkcs11:", "names no key"),
        ("pkcs11:object=a;object=b", "'object' cannot stand there"),
        ("pkcs11:object=a;slot-id=3", "'slot-id' cannot stand there"),
        ("pkcs11:object=a?object=b", "'object' cannot stand there"),
        ("pkcs11:object", "'object' cannot stand there"),
        ("pkcs11:object=a;type=public", "no private key"),
        ("pkcs11:object=%ff", "not UTF-8"),
        ("pkcs11:object=\x1b[2J", "must be written as %XX"),
        ("pkcs11:object=" + "a" * 3000, "too long"),
    ],
)
def test_a_wrong_uri_is_refused(text: str, said: str) -> None:
    with pytest.raises(SignatureError) as caught:
        parse_uri(text)
    assert said in caught.value.problem


def test_a_pin_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(SignatureError) as caught:
        parse_uri("pkcs11:object=a?pin-value=4711")
    assert "does not belong into a URI" in caught.value.problem
    assert "4711" not in str(caught.value)


def test_a_pin_comes_from_the_file_that_is_named_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIN_VARIABLE, "of the environment")
    (tmp_path / "pin").write_text("of the file\n")
    assert read_pin(parse_uri("pkcs11:object=a")) == "of the environment"
    assert read_pin(parse_uri(f"pkcs11:object=a?pin-source={tmp_path}/pin")) == "of the file"
    monkeypatch.delenv(PIN_VARIABLE)
    with pytest.raises(SignatureError, match="wants a PIN"):
        read_pin(parse_uri("pkcs11:object=a"))
    for content in (b"", b"\n", b"\xff\xfe", b"1" * 300):
        (tmp_path / "pin").write_bytes(content)
        with pytest.raises(SignatureError, match="PIN"):
            read_pin(parse_uri(f"pkcs11:object=a?pin-source={tmp_path}/pin"))
    with pytest.raises(SignatureError, match="No such file"):
        read_pin(parse_uri("pkcs11:object=a?pin-source=/nowhere/pin"))


def test_a_library_is_named_by_the_uri_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODULE_VARIABLE, "/usr/lib/of-environment.so")
    assert find_module(parse_uri("pkcs11:object=a")) == "/usr/lib/of-environment.so"
    assert find_module(parse_uri("pkcs11:object=a?module-path=/m.so")) == "/m.so"
    monkeypatch.delenv(MODULE_VARIABLE)
    with pytest.raises(SignatureError, match="nobody named"):
        find_module(parse_uri("pkcs11:object=a"))
