"""Assembly of a bundle's folder from prepared variants, its signature, and its encryption.

Encryption comes last, after the rehearsal of the plain bundle: devices decrypt exactly the
rehearsed files.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.hooks.runner import check_hook_folder
from edgepack.bundle.chunks import entry
from edgepack.bundle.encrypted_files import KEY_BYTES, decrypt_stream, encrypt_stream
from edgepack.bundle.generation import GENAI_CONFIG, GOLDEN_TEXTS, TOKENIZER, GoldenText
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import (
    COMPONENT,
    GOLDEN_FILE,
    HOOKS_FOLDER,
    MANIFEST_FILE,
    BundleFacts,
    FileEntry,
    Manifest,
    Variant,
    VariantFacts,
    encode_manifest,
)
from edgepack.bundle.provenance import BILL_FILE, PROVENANCE_FILE
from edgepack.bundle.recipients import seal_content_key
from edgepack.bundle.signature import sign_folder
from edgepack.bundle.signing_keys import SigningKey
from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.bundling.shipped_firmware import ShippedFirmware, copy_firmware
from edgepack.packager.graph.tensor_offsets import tensor_offsets
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.record import BuildRecord, encode_document
from edgepack.packager.provenance.statement import compose_statement
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import Report, encode_report
from edgepack.packager.source.encoders import EncoderSource
from edgepack.packager.source.texts import TextSource

REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


class BundleParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a bundle.

    Attributes:
        facts: The manifest's, but for `files`.
        variants: In the order of preference.
        golden: Golden samples.
        hooks: Folder of firmware hooks to ship, or None.
        firmware: Firmware artefacts to ship.
        pictures: Golden pictures or sounds to ship: path in the bundle and file.
        texts: Files for the generation of texts; None for a model that generates none.
        encoder: Makes vectors of texts; None for other models.
        golden_texts: Its golden texts.
        tokenizer: The `tokenizer.json` of a model that makes texts of sounds; None for others.
    """

    facts: BundleFacts
    variants: tuple[PreparedVariant, ...]
    golden: Golden
    hooks: Path | None
    firmware: tuple[ShippedFirmware, ...] = ()
    pictures: tuple[tuple[str, Path], ...] = ()
    texts: TextSource | None = None
    encoder: EncoderSource | None = None
    golden_texts: Sequence[GoldenText] = ()
    tokenizer: Path | None = None


class LaidOut(msgspec.Struct, frozen=True, kw_only=True):
    """Files that lie in a bundle's folder, with their digests and chunks.

    Attributes:
        variants: Variants of the manifest.
        golden: Entry of the golden samples.
        pictures: Entries of the golden pictures.
        hooks: Entries of the hooks and the firmware.
        assets: Entries of the files for the generation of texts.
        deltas: Entries of deltas from older bundles.
    """

    variants: tuple[Variant, ...]
    golden: FileEntry
    pictures: tuple[FileEntry, ...]
    hooks: tuple[FileEntry, ...]
    deltas: tuple[FileEntry, ...] = ()
    assets: tuple[FileEntry, ...] = ()


def lay_out(folder: Path, parts: BundleParts) -> LaidOut:
    """Copy variants, golden samples with pictures, hooks, firmware, and the files of a decoder into
    a bundle's folder.

    Args:
        folder: The bundle's folder; exists and is empty.
        parts: Content of the bundle.

    Raises:
        OSError: The disk is full, or a file cannot be read.
        DeviceError: A hook lies where no stage is, or could not run.
    """
    variants = tuple(copy_variant(folder, variant) for variant in parts.variants)
    (folder / GOLDEN_FILE).parent.mkdir()
    write_golden(folder / GOLDEN_FILE, parts.golden)
    for path, source in parts.pictures:
        (folder / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / path)
    hooks = _copy_hooks(folder, parts.hooks) if parts.hooks else ()
    hooks += copy_firmware(folder, parts.firmware)
    return LaidOut(
        variants=variants,
        golden=entry(folder, GOLDEN_FILE),
        pictures=tuple(entry(folder, path) for path, _ in parts.pictures),
        hooks=hooks,
        assets=_write_assets(folder, parts, variants),
    )


def finish(
    folder: Path,
    parts: BundleParts,
    laid_out: LaidOut,
    report: Report,
    record: BuildRecord,
    key: SigningKey,
) -> str:
    """Add the report, the bill of materials, the provenance and the manifest, and sign the folder.

    Args:
        folder: The folder that `lay_out` filled.
        parts: Content of `lay_out`.
        laid_out: Result of `lay_out`.
        report: The report, without times.
        record: Where everything came from.
        key: Signs.

    Returns:
        The bundle's digest, hex.
    """
    documents = {
        REPORT_HTML: render_report(report).encode(),
        REPORT_JSON: encode_report(report),
        BILL_FILE: encode_document(compose_bill(record)),
    }
    files = [laid_out.golden, *laid_out.pictures, *laid_out.hooks, *laid_out.deltas]
    files += laid_out.assets
    files += [_write(folder, name, content) for name, content in documents.items()]
    of_variants = [file for variant in laid_out.variants for file in variant.facts.files]
    statement = encode_document(compose_statement(record, (*files, *of_variants)))
    files.append(_write(folder, PROVENANCE_FILE, statement))
    firmware = tuple(one.firmware for one in parts.firmware)
    facts = replace(parts.facts, files=tuple(files), firmware=firmware)
    manifest = Manifest(facts=facts, variants=laid_out.variants)
    write_file(folder / MANIFEST_FILE, encode_manifest(manifest), lasting=False)
    return sign_folder(folder, key, name=f"{facts.name}-{facts.version}")


def _write(folder: Path, name: str, content: bytes) -> FileEntry:
    write_file(folder / name, content, lasting=False)
    return entry(folder, name)


def _write_assets(
    folder: Path, parts: BundleParts, variants: Sequence[Variant]
) -> tuple[FileEntry, ...]:
    """Copy the files for texts: of an encoder the tokenizer with golden texts, of a model of speech
    the tokenizer.

    Of a decoder these are tokenizer, template and settings, and the wiring for the first variant's
    model. The wiring does not describe graphs with fixed shapes, so that other variants come first.
    """
    texts = parts.texts
    if parts.encoder is not None:
        shutil.copyfile(parts.encoder.tokenizer, folder / TOKENIZER)
        golden = _write(folder, GOLDEN_TEXTS, msgspec.json.encode(parts.golden_texts))
        return (entry(folder, TOKENIZER), golden)
    if parts.tokenizer is not None:
        shutil.copyfile(parts.tokenizer, folder / TOKENIZER)
        return (entry(folder, TOKENIZER),)
    if texts is None:
        return ()
    first = min(variants, key=lambda one: one.facts.fixed_decoder is not None)
    config = texts.config_for(f"{first.folder}/{first.model_file}")
    for file in texts.files:
        shutil.copyfile(file, folder / file.name)
    own = _write(folder, GENAI_CONFIG, config)
    return (own, *(entry(folder, file.name) for file in texts.files))


def copy_variant(folder: Path, prepared: PreparedVariant, component: str = COMPONENT) -> Variant:
    """Copy the files of a variant into a bundle's folder, and return the variant.

    Args:
        folder: The bundle's folder.
        prepared: The variant.
        component: Its component: the stage, for a graph of a pipeline.

    Raises:
        OSError: The disk is full, or a file cannot be read.
    """
    named = prepared.name if component == COMPONENT else f"{component}.{prepared.name}"
    place = f"{COMPONENT}/{named}"
    target = folder / place
    target.mkdir(parents=True)
    _copy_files(prepared.folder, target)
    own = {
        "files": list_entries(folder, place),
        "plain_runtime": prepared.plain_runtime,
        "plain_provider": prepared.plain_provider,
    }
    facts = VariantFacts(**prepared.told_of(VariantFacts) | own)
    return Variant(**prepared.told_of(Variant), facts=facts, component=component)


def list_entries(folder: Path, place: str) -> tuple[FileEntry, ...]:
    """Return the files of a variant in a bundle's folder, with chunks that end where tensors do.

    Args:
        folder: The bundle's folder.
        place: POSIX path of the variant's folder.
    """
    own = folder / place
    offsets = tensor_offsets(own)
    names = sorted(path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file())
    return tuple(entry(folder, f"{place}/{name}", offsets.get(name, ())) for name in names)


def _copy_hooks(folder: Path, hooks: Path) -> tuple[FileEntry, ...]:
    check_hook_folder(hooks)
    target = folder / HOOKS_FOLDER
    target.mkdir()
    names = _copy_files(hooks, target, mode=0o755)
    return tuple(entry(folder, f"{HOOKS_FOLDER}/{name}") for name in names)


def _copy_files(source: Path, target: Path, *, mode: int = 0o644) -> tuple[str, ...]:
    """Copy the files below a folder that are not by-product; see `_is_by_product`.

    Returns:
        Their POSIX paths below the folder, sorted.
    """
    names = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not _is_by_product(path.relative_to(source))
    )
    for name in names:
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination)
        destination.chmod(mode)
    return tuple(names)


def _is_by_product(path: Path) -> bool:
    """Return True if a file is hidden, or in a hidden folder (`.git`), or Python's own
    (`__pycache__`).
    """
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


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

    graphs: dict[str, Variant] = {}

    def graph(each: Variant) -> Variant:
        if each.folder not in graphs:
            files = tuple(map(encrypted, each.facts.files))
            graphs[each.folder] = replace(each, facts=replace(each.facts, files=files))
        return graphs[each.folder]

    def variant(each: Variant) -> Variant:
        if not each.parts:
            return graph(each)
        parts = tuple(map(graph, each.parts))
        files = tuple(file for part in parts for file in part.facts.files)
        return replace(each, parts=parts, facts=replace(each.facts, files=files))

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
