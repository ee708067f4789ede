"""The commands around a bundle: `inspect`, `verify` and `unpack`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from edgepack.bundle.accuracy_words import describe_accuracy
from edgepack.bundle.archive import read_head
from edgepack.bundle.archive import unpack as unpack_archive
from edgepack.bundle.forms import check_folder, locate, open_bundle, read_manifest
from edgepack.bundle.keys import PublicKey, load_public_key
from edgepack.bundle.manifest import (
    Generation,
    Manifest,
    Variant,
)
from edgepack.bundle.provenance import (
    PROFILE_ROLE,
    BillOfMaterials,
    Origin,
    Provenance,
    read_documents,
    read_origin,
)
from edgepack.bundle.verify import VerifiedBundle, verify_archive, verify_folder
from edgepack.command_options import json_option, keys_option
from edgepack.errors import BundleError
from edgepack.json_text import json_text
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.inputs import PictureInput
from edgepack.text import counted, printable, printable_lines

_bundle = click.argument("bundle", type=click.Path(path_type=Path))
_HELP = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP)
@_bundle
@keys_option("Public key; the bundle is then verified too. May be given more than once.")
@json_option
def inspect(bundle: Path, key_paths: tuple[Path, ...], as_json: bool) -> None:
    """Show the content of a bundle (a folder or an archive).

    Without --key the manifest is trusted and nothing is verified.

    \b
    Example:
      edgepack inspect digits-1.2.0.edgepack
      edgepack inspect digits-1.2.0.edgepack --key release.pub --json
    """
    bundle = locate(bundle)
    verified = _verify(bundle, key_paths) if key_paths else None
    manifest = verified.manifest if verified else _read_manifest(bundle)
    origin = read_origin(read_documents(bundle), manifest)
    if as_json:
        click.echo(
            json_text(
                {
                    "verified": verified is not None,
                    "digest": verified.digest if verified else None,
                    "key_id": verified.signed.key_id if verified else None,
                    "manifest": manifest,
                    "provenance": origin.provenance,
                    "bill_of_materials": origin.bill,
                }
            )
        )
        return
    click.echo(_describe(manifest))
    if lines := list(describe_origin(origin)):
        click.echo("\n".join(["", *lines]))
    if verified:
        click.echo(_describe_signature(verified))
    else:
        click.echo("not verified: give --key to check the signature and every file", err=True)


@click.command(context_settings=_HELP)
@_bundle
@keys_option("Public key that is trusted. May be given more than once.", required=True)
@json_option
def verify(bundle: Path, key_paths: tuple[Path, ...], as_json: bool) -> None:
    """Check a bundle's signature and every byte of every file.

    Exit code 0 means that one of the keys signed the bundle, nothing was changed since, and
    provenance and bill of materials describe this very bundle.

    \b
    Example:
      edgepack verify digits-1.2.0.edgepack --key release.pub
    """
    bundle = locate(bundle)
    verified = _verify(bundle, key_paths)
    origin = read_origin(read_documents(bundle), verified.manifest)
    facts = verified.manifest.facts
    if as_json:
        click.echo(
            json_text(
                {
                    "name": facts.name,
                    "version": facts.version,
                    "release": facts.release,
                    "digest": verified.digest,
                    "key_id": verified.signed.key_id,
                    "files": verified.signed.files,
                    "provenance": origin.provenance is not None,
                    "bill_of_materials": origin.bill is not None,
                }
            )
        )
        return
    title = printable(f"{facts.name} {facts.version}")
    click.echo(f"{title}, release {facts.release}: verified")
    click.echo(_describe_signature(verified))
    for line in describe_origin(origin):
        click.echo(line)


@click.command(context_settings=_HELP)
@click.argument("archive", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to make; must not exist.",
)
@keys_option("Public key; nothing is unpacked unless the bundle verifies.")
def unpack(archive: Path, folder: Path, key_paths: tuple[Path, ...]) -> None:
    """Turn an archive into a folder: all files or nothing.

    \b
    Example:
      edgepack unpack digits-1.2.0.edgepack -o digits-1.2.0 --key release.pub
    """
    archive = locate(archive)
    if archive.is_dir():
        raise BundleError(
            f"'{archive}' is a folder already",
            found_in=str(archive),
            remedy=f"edgepack verify {archive} --key release.pub",
        )
    if key_paths:
        verified = verify_archive(archive, _load_keys(key_paths), folder)
        manifest, state = verified.manifest, "verified"
    else:
        manifest, state = unpack_archive(archive, folder), "not verified"
    facts = manifest.facts
    title = printable(f"{facts.name} {facts.version}")
    click.echo(f"{title}, release {facts.release}: {folder} ({state})")
    if not key_paths:
        click.echo("not verified: give --key to check the signature", err=True)


def _load_keys(paths: Sequence[Path]) -> list[PublicKey]:
    return [load_public_key(path) for path in paths]


def _verify(bundle: Path, key_paths: Sequence[Path]) -> VerifiedBundle:
    keys = _load_keys(key_paths)
    with open_bundle(bundle) as folder:
        return verify_folder(folder, keys)


def _read_manifest(bundle: Path) -> Manifest:
    if bundle.is_dir():
        check_folder(bundle)
        return read_manifest(bundle)
    return read_head(bundle).manifest


def _describe(manifest: Manifest) -> str:
    facts = manifest.facts
    lines = [
        f"{facts.name} {facts.version}, release {facts.release}",
        f"source model: sha256 {facts.source_sha256}",
    ]
    if facts.created_at:
        lines.append(f"created at:   {facts.created_at}")
    if facts.encryption is not None:
        names = ", ".join(each.recipient[:12] for each in facts.encryption.keys[:_MOST_RECIPIENTS])
        more = ", …" if len(facts.encryption.keys) > _MOST_RECIPIENTS else ""
        count = counted(len(facts.encryption.keys), "recipient")
        lines.append(f"encrypted to: {count}: {names}{more}")
    for one in facts.firmware:
        lines.append(f"firmware:     {one.version} for {one.kind}")
    if facts.tools:
        tools = ", ".join(f"{name} {version}" for name, version in sorted(facts.tools.items()))
        lines.append(f"made with:    {tools}")
    lines += _describe_generation(facts.generation)
    if (adapter := facts.adapter) is not None:
        lines.append(
            f"adapter:      for {adapter.words}, rank {adapter.rank}, of "
            f"{', '.join(adapter.modules)}"
        )
    lines += _describe_tensors(facts.description)
    lines += ["", *_table([_HEADINGS, *(_row(variant) for variant in manifest.variants)]), ""]
    if plain := [line for variant in manifest.variants for line in _plain_runtime(variant)]:
        lines += [*plain, ""]
    for entry in facts.files:
        lines.append(f"{_size(entry.size_bytes):>10}  {entry.path}")
    for graph in manifest.graphs:
        for entry in graph.facts.files:
            lines.append(f"{_size(entry.size_bytes):>10}  {entry.path}")
    return printable_lines(lines)


def _describe_generation(texts: Generation | None) -> Iterator[str]:
    """Yield a line on the memory of a model that generates texts."""
    if texts is not None:
        yield (
            f"texts:        context {texts.context:,} tokens, vocabulary {texts.vocabulary:,}, "
            f"cache {_size(texts.cache_bytes_per_token)} a token, "
            f"{_size(texts.cache_bytes)} when full"
            f"{'; with places for adapters' if texts.adapters is not None else ''}"
        )


def _describe_tensors(description: ModelDescription) -> Iterator[str]:
    """Yield a line for each input and output with a known meaning."""
    for one in description.inputs:
        is_open = isinstance(one, PictureInput) and not one.is_checked
        yield f"input {one.name}: {one.words}{_NOT_CHECKED if is_open else ''}"
    for part in description.parts:
        named = [name for name in part.class_names[:_MOST_NAMES] if name]
        more = ", …" if len(part.class_names) > _MOST_NAMES else ""
        classes = f", {counted(len(part.class_names), 'class', 'classes')}: " if named else ""
        yield f"output {', '.join(part.outputs)}: {part.task}{classes}{', '.join(named)}{more}"


_MOST_NAMES = 10
_NOT_CHECKED = " (declared; the build's samples were arrays)"
_MOST_RECIPIENTS = 10
_HEADINGS = ("variant", "provider", "device", "precision", "size", "accuracy", "placed", "needs")


def _row(variant: Variant) -> tuple[str, ...]:
    facts = variant.facts
    placed = f"{facts.placement.taken}/{facts.placement.total}"
    needs = [
        *(["|".join(facts.requires.arch)] if facts.requires.arch else []),
        *facts.requires.cpu_features,
        *(["|".join(facts.requires.soc)] if facts.requires.soc else []),
        *([f"onnxruntime {facts.requires.runtime}"] if facts.requires.runtime else []),
        *(f"{name} {wanted}" for name, wanted in sorted(facts.requires.drivers.items())),
    ]
    return (
        variant.name,
        variant.provider.removesuffix("ExecutionProvider"),
        variant.device,
        facts.precision + (" (degraded)" if facts.degraded else ""),
        _size(sum({entry.sha256: entry.size_bytes for entry in facts.files}.values())),
        describe_accuracy(facts.accuracy),
        placed if facts.placement.verified else "not known",
        ", ".join(needs) or "anything",
    )


def _plain_runtime(variant: Variant) -> Iterator[str]:
    """Yield notes for users of a variant without the agent."""
    facts = variant.facts
    for plain, where in ((facts.plain_runtime, ""), (facts.plain_provider, variant.provider)):
        if plain is None or (plain.right and not plain.session_options):
            continue
        releases = ", ".join(plain.releases)
        needs = ", ".join(f"{key}={value}" for key, value in plain.session_options.items())
        told = f"needs {needs}" if plain.right else "is less accurate, whatever its settings"
        on = f" on {where}" if where else ""
        yield f"{variant.name} in ONNX Runtime by itself{on} ({releases}) {told}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return f"{size_bytes} B"
    if size_bytes < 1000**2:
        return f"{size_bytes / 1000:.1f} KB"
    return f"{size_bytes / 1000**2:.1f} MB"


def _describe_signature(verified: VerifiedBundle) -> str:
    return (
        f"signed by key: {verified.signed.key_id}\n"
        f"root digest:   {verified.digest} ({len(verified.signed.files)} files)"
    )


_SHORT = 12
_NOT_SAID = "not said"


def describe_origin(origin: Origin) -> Iterator[str]:
    """Yield lines for a terminal; none of a bundle that has neither document."""
    if origin.provenance is not None:
        yield from map(printable, _provenance(origin.provenance))
    if origin.bill is not None:
        yield from map(printable, _bill(origin.bill))


def _provenance(provenance: Provenance) -> Iterator[str]:
    yield f"built by:      {provenance.builder_id}"
    made_of = ", ".join(
        f"{each.name} {each.sha256[:_SHORT]}"
        for each in provenance.dependencies
        if each.role != PROFILE_ROLE
    )
    yield f"built from:    {made_of}"


def _bill(bill: BillOfMaterials) -> Iterator[str]:
    yield f"license:       {bill.license or _NOT_SAID}"
    yield f"producer:      {bill.producer or _NOT_SAID}"
    yield f"data sets:     {', '.join(bill.datasets) or _NOT_SAID}"
