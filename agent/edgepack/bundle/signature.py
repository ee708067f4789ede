"""Signing a bundle's files and believing nothing but a signature by a trusted key.

The format is OpenSSF Model Signing v1.0 (`pip install model-signing` reads and writes this format):
an envelope (`envelope.py`) over an in-toto statement, which lists every file with its SHA-256.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgepack.bundle.chunks import digest_file
from edgepack.bundle.envelope import (
    MAX_SIGNATURE_BYTES,
    expect_type,
    open_payload,
    read_unverified_payload,
    seal_payload,
)
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import SIGNATURE_FILE
from edgepack.bundle.metadata import Sha256
from edgepack.bundle.paths import GIT_NAMES, check_path, sort_key
from edgepack.bundle.signing_keys import SigningKey
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.bundle.tree import list_files
from edgepack.durable import write_file
from edgepack.errors import BundleError, SignatureError

_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_IGNORED = (SIGNATURE_FILE, *GIT_NAMES)
_PAYLOAD = f"{SIGNATURE_FILE}, dsseEnvelope.payload"


class SignedList(msgspec.Struct, frozen=True, kw_only=True):
    """Content that a trusted key signed.

    Attributes:
        digest: Root digest, lower-case hex: SHA-256 over the files' digests in order.
        files: SHA-256 (lower-case hex) by POSIX path; every file but the signature.
        key_id: The key that signed.
        name: The signer's name for the bundle; for people only.
    """

    digest: str
    files: dict[str, str]
    key_id: str
    name: str


class _Digest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: Sha256


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: _Digest


class _Serialization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: Literal["files"]
    hash_type: Literal["sha256"]
    allow_symlinks: bool
    ignore_paths: tuple[str, ...] = ()


class _Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    algorithm: Literal["sha256"]
    digest: Sha256


class _Predicate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    serialization: _Serialization
    resources: tuple[_Resource, ...]


class _Statement(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type")
    subject: tuple[_Subject]
    predicate_type: str
    predicate: _Predicate


def sign_folder(folder: Path, key: SigningKey, *, name: str = "") -> str:
    """Sign every file of a bundle's folder and write `model.sig`, not yet flushed.

    Args:
        folder: The bundle.
        key: Signs.
        name: Shown by tools that read the signature; the folder's name when empty.

    Returns:
        The root digest, lower-case hex.

    Raises:
        BundleError: The folder has a link, a special file, or a name that cannot be signed.
        SignatureError: The key is in a token, which refuses.
    """
    files = {path: digest_file(folder / path) for path in list_files(folder)}
    files.pop(SIGNATURE_FILE, None)
    digest = root_digest(files)
    statement = _statement(name or folder.resolve().name, digest, files)
    signature = seal_payload(msgspec.json.encode(statement), key)
    write_file(folder / SIGNATURE_FILE, signature, lasting=False)
    return digest


def root_digest(files: dict[str, str]) -> str:
    """Return SHA-256 over the files' digests (32 bytes each) in the order of their paths, hex."""
    return hashlib.sha256(digest_list(files)).hexdigest()


def digest_list(files: dict[str, str]) -> bytes:
    """Return the files' digests (32 bytes each) in the order of their paths; the root digest is
    theirs.
    """
    return b"".join(bytes.fromhex(files[path]) for path in sorted(files, key=sort_key))


def verify_envelope(content: bytes, keys: Sequence[PublicKey]) -> SignedList:
    """Check a signature and return the signed list; read no other file.

    1. The envelope is bounded, well-formed and of the only format.
    2. A trusted key signed the payload. Nothing in the payload is read before.
    3. The payload is a statement about exactly 1 model, whole files, SHA-256, no links.
    4. The list leaves out nothing but the signature and git's own files: a stock verifier would
       accept a file under any other ignored path.
    5. Every name is safe and stands once; the root digest fits the list.

    Args:
        content: Bytes of `model.sig`.
        keys: The trusted keys; the signature of any key suffices.

    Raises:
        SignatureError: A check fails.
    """
    try:
        # 1, 2
        payload = open_payload(content, keys)
        # 3
        statement = _read_statement(payload.content)
        files = _listed_files(statement)
    except SignatureError:
        raise
    except BundleError as error:
        raise SignatureError(error.problem, found_in=error.found_in, remedy=error.remedy) from error
    return SignedList(
        digest=statement.subject[0].digest.sha256,
        files=files,
        key_id=payload.key_id,
        name=statement.subject[0].name,
    )


def signed_digest(content: bytes) -> str:
    """Return the root digest that a signature names, without verifying the signature.

    Only for a bundle with an earlier verified signature: the function detects a damaged signature,
    or the signature of another bundle.

    Args:
        content: Bytes of `model.sig`.

    Raises:
        BundleError: The signature is malformed, or its root digest does not fit its files.
    """
    statement = _read_statement(read_unverified_payload(content))
    _listed_files(statement)
    return statement.subject[0].digest.sha256


def _read_statement(payload: bytes) -> _Statement:
    return convert_json(
        parse_json(payload, limit_bytes=MAX_SIGNATURE_BYTES, found_in=_PAYLOAD),
        _Statement,
        found_in=_PAYLOAD,
    )


def _listed_files(statement: _Statement) -> dict[str, str]:
    expect_type(statement.type, _STATEMENT_TYPE, "dsseEnvelope.payload._type")
    expect_type(statement.predicate_type, _PREDICATE_TYPE, "dsseEnvelope.payload.predicateType")
    predicate = statement.predicate
    found_in = f"{_PAYLOAD}.predicate"
    if predicate.serialization.allow_symlinks:
        raise SignatureError(
            "the signature follows symbolic links",
            found_in=f"{found_in}.serialization.allow_symlinks",
        )
    # 4
    for path in predicate.serialization.ignore_paths:
        if path not in _IGNORED:
            raise SignatureError(
                f"the signature leaves out {path!a}, so files there would be unsigned",
                found_in=f"{found_in}.serialization.ignore_paths",
                remedy="sign it again with edgepack, which leaves out nothing",
            )
    # 5
    files: dict[str, str] = {}
    for resource in predicate.resources:
        check_path(resource.name, found_in=f"{found_in}.resources")
        if resource.name in files or resource.name == SIGNATURE_FILE:
            raise SignatureError(
                f"'{resource.name}' must not be listed"
                + (" twice" if resource.name in files else ""),
                found_in=f"{found_in}.resources",
            )
        files[resource.name] = resource.digest
    if list(files) != sorted(files, key=sort_key):
        raise SignatureError("the files are not in order", found_in=f"{found_in}.resources")
    if root_digest(files) != statement.subject[0].digest.sha256:
        raise SignatureError(
            "the root digest is not the one of the listed files",
            found_in=f"{_PAYLOAD}.subject",
        )
    return files


def _statement(name: str, digest: str, files: dict[str, str]) -> dict[str, Any]:
    return {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": sorted(_IGNORED),
            },
            "resources": [
                {"name": path, "algorithm": "sha256", "digest": files[path]}
                for path in sorted(files, key=sort_key)
            ],
        },
    }
