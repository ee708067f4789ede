"""Reading PKCS #11 URIs (RFC 7512): which key in which token, and where its PIN is.

A PIN is never part of a URI here: command lines are seen by everybody on a machine, and logged.
"""

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

import msgspec

from edgepack.errors import SignatureError

MODULE_VARIABLE = "EDGEPACK_PKCS11_MODULE"
PIN_VARIABLE = "EDGEPACK_PKCS11_PIN"

EXAMPLE = "pkcs11:token=release;object=signing?pin-source=/run/secrets/pin"

_SCHEME = "pkcs11:"
MAX_LETTERS = 2000
_MAX_PIN_BYTES = 256
_PATH = ("token", "serial", "object", "id", "type")
_QUERY = ("module-path", "pin-source")


class KeyUri(msgspec.Struct, frozen=True, kw_only=True):
    """Key in a token.

    Attributes:
        text: The given URI, for messages.
        token, serial: Label and serial number of the token; "" where any will do.
        object: Label of the key; "" if `id` identifies the key.
        id: Identifier of the key; empty if the label identifies the key.
        module: Path of the token's library; "" uses `EDGEPACK_PKCS11_MODULE`.
        pin_source: File with the PIN; "" uses `EDGEPACK_PKCS11_PIN`.
    """

    text: str
    token: str = ""
    serial: str = ""
    object: str = ""
    id: bytes = b""
    module: str = ""
    pin_source: str = ""


def is_uri(where: str | Path) -> bool:
    """Return True if a person named a key in a token, not a file."""
    return str(where).lower().startswith(_SCHEME)


def parse_uri(text: str) -> KeyUri:
    """Read a URI.

    Raises:
        SignatureError: The URI is malformed, has an unknown attribute, names no key, or holds a
            PIN.
    """
    if len(text) > MAX_LETTERS or not text.isascii() or not text.isprintable():
        raise _wrong("the URI is too long, or has characters that must be written as %XX", "")
    path, _, query = text[len(_SCHEME) :].partition("?")
    found: dict[str, bytes] = {}
    for part, separator, known in ((path, ";", _PATH), (query, "&", _QUERY)):
        for attribute in filter(None, part.split(separator)):
            name, equals, value = attribute.partition("=")
            if name == "pin-value":
                raise SignatureError(
                    "a PIN does not belong into a URI: others see command lines",
                    found_in="pin-value",
                    remedy=f"pin-source=FILE, or set {PIN_VARIABLE}",
                )
            if not equals or name not in known or name in found:
                raise _wrong(f"'{name}' cannot stand there; known are: {', '.join(known)}", text)
            found[name] = unquote_to_bytes(value)
    if found.get("type", b"private") != b"private":
        raise _wrong("the URI names no private key", text)
    if not (found.get("object") or found.get("id")):
        raise _wrong("the URI names no key: object (its label) or id", text)
    try:
        texts = {name: value.decode() for name, value in found.items() if name != "id"}
    except UnicodeDecodeError as error:
        raise _wrong("the URI has text that is not UTF-8", text) from error
    return KeyUri(
        text=text,
        token=texts.get("token", ""),
        serial=texts.get("serial", ""),
        object=texts.get("object", ""),
        id=found.get("id", b""),
        module=texts.get("module-path", ""),
        pin_source=texts.get("pin-source", "").removeprefix("file:"),
    )


def find_module(uri: KeyUri) -> str:
    """Return path of the library that speaks to the token.

    Raises:
        SignatureError: No library is configured.
    """
    module = uri.module or os.environ.get(MODULE_VARIABLE, "")
    if not module:
        raise SignatureError(
            "nobody named the token's PKCS #11 library",
            found_in=uri.text,
            remedy=f"set {MODULE_VARIABLE}=/usr/lib/softhsm/libsofthsm2.so, or ?module-path=…",
        )
    return module


def read_pin(uri: KeyUri) -> str:
    """Return the PIN: from the file that the URI names, else from the environment.

    Raises:
        SignatureError: There is none, or the file cannot be read; a PIN is in no message.
    """
    if not uri.pin_source:
        pin = os.environ.get(PIN_VARIABLE, "")
        if not pin:
            raise SignatureError(
                "the token wants a PIN, and there is none",
                found_in=uri.text,
                remedy=f"set {PIN_VARIABLE}, or ?pin-source=FILE",
            )
        return pin
    try:
        with Path(uri.pin_source).open("rb") as file:
            content = file.read(_MAX_PIN_BYTES + 1)
        pin = content.decode().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SignatureError(f"cannot read the PIN: {reason}", found_in=uri.pin_source) from error
    if not pin or len(content) > _MAX_PIN_BYTES:
        raise SignatureError("the file holds no PIN", found_in=uri.pin_source)
    return pin


def _wrong(problem: str, text: str) -> SignatureError:
    return SignatureError(problem, found_in=text or None, remedy=EXAMPLE)
