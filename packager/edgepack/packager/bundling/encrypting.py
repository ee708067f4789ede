"""Encryption of a bundle's model files, for the devices that may read them.

Encryption comes last, after the rehearsal of the plain bundle: devices decrypt exactly the
rehearsed files.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.chunks import entry
from edgepack.bundle.encrypted_files import KEY_BYTES, decrypt_stream, encrypt_stream
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import FileEntry, Variant
from edgepack.bundle.recipients import seal_content_key
from edgepack.errors import BuildError
from edgepack.packager.bundling.assemble import BundleParts, LaidOut


def encrypt_files(
    folder: Path, parts: BundleParts, laid_out: LaidOut, recipients: Iterable[PublicKey]
) -> tuple[BundleParts, LaidOut]:
    """Encrypt variants and golden samples in place, with a content key that nobody else has.

    Args:
        folder: The folder that `lay_out` filled.
        parts: Content of `lay_out`.
        laid_out: Result of `lay_out`.
        recipients: Recipients of the bundle.

    Returns:
        Both with the encrypted files, for `finish`.

    Raises:
        OSError: The disk is full.
        BuildError: The written files cannot be decrypted again.
    """
    content_key = os.urandom(KEY_BYTES)
    encryption = seal_content_key(content_key, recipients)

    def encrypted(file: FileEntry) -> FileEntry:
        _encrypt(folder, file, content_key)
        return entry(folder, file.path)

    def variant(each: Variant) -> Variant:
        files = tuple(map(encrypted, each.facts.files))
        return replace(each, facts=replace(each.facts, files=files))

    facts = replace(parts.facts, encryption=encryption)
    return replace(parts, facts=facts), replace(
        laid_out,
        variants=tuple(map(variant, laid_out.variants)),
        golden=encrypted(laid_out.golden),
        pictures=tuple(map(encrypted, laid_out.pictures)),
    )


def _encrypt(folder: Path, file: FileEntry, content_key: bytes) -> None:
    path = folder / file.path
    target = path.with_name(f"{path.name}.encrypted")
    with path.open("rb") as plain, target.open("xb") as written:
        encrypt_stream(plain, written, content_key, file.path)
    digest = hashlib.sha256()
    with target.open("rb") as written:
        decrypt_stream(written, digest.update, content_key, file.path)
    if digest.hexdigest() != file.sha256:
        raise BuildError(f"'{file.path}' differs after decryption", found_in=str(target))
    target.replace(path)
