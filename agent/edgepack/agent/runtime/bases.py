"""The base of an adapter on this device: the serving release of another model.

An adapter has no graph of its own: the base's session runs with the adapter's tensors. An adapter
fits a single release of its base, by the digest of the bundle.
"""

from pathlib import Path

import msgspec

from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.adapters import AdapterFacts
from edgepack.bundle.chunks import raise_disk_fault, read_bounded
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    Variant,
    decode_manifest,
)
from edgepack.errors import BundleError, DeviceError


class AdapterOutageError(DeviceError):
    """An adapter is installed and does not serve now."""


class BaseRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Base of an adapter.

    Attributes:
        folder: Root of the base's unpacked bundle.
        variant: The variant that serves.
    """

    folder: str
    variant: Variant


def base_name(manifest: Manifest) -> str:
    """Return the name of an adapter's base; "" for a model that runs by itself."""
    adapter = manifest.facts.adapter
    return "" if adapter is None else adapter.base


def check_base(adapter: AdapterFacts, name: str, base: ActivePointer | None) -> ActivePointer:
    """Return the pointer of an adapter's base if the adapter is for the serving release.

    Args:
        adapter: Facts of the adapter.
        name: Name and version of the adapter, for messages.
        base: Pointer of the base's model; None if nothing serves.

    Raises:
        AdapterOutageError: No release of the base serves, or another release.
    """
    if base is None:
        raise AdapterOutageError(
            f"adapter {name} is for {adapter.words}, and no release of '{adapter.base}' serves on "
            "this device",
            remedy=f"install {adapter.base} {adapter.base_version} first",
        )
    if base.digest != adapter.base_digest:
        raise AdapterOutageError(
            f"adapter {name} is for {adapter.words}, and {base.bundle.name} "
            f"{base.bundle.version} ({base.digest[:12]}) serves",
            remedy="build the adapter again, --base with the bundle that serves, or roll the base "
            "back",
        )
    return base


def find_base(state_dir: Path, manifest: Manifest) -> BaseRelease | None:
    """Return the base of an adapter on this device; None for a model that runs by itself.

    Args:
        state_dir: The agent's state folder.
        manifest: The adapter's.

    Raises:
        OSError: The disk is full, read-only or fails: no verdict on the base.
        DeviceError: The base does not serve, or in another release.
        BundleError: The manifest of the base is damaged.
    """
    facts = manifest.facts
    adapter = facts.adapter
    if adapter is None:
        return None
    pointer = read_pointer(state_dir, adapter.base)
    pointer = check_base(adapter, f"{facts.name} {facts.version}", pointer)
    folder = slot_folder(state_dir, pointer.digest)
    chosen = pointer.choice.chosen
    try:
        variant = _read_manifest(folder).variant(chosen)
    except KeyError as error:
        raise BundleError(
            f"the manifest of the base {adapter.words} has no variant '{chosen}'",
            found_in=str(folder),
        ) from error
    return BaseRelease(folder=str(folder), variant=variant)


def find_base_of(folder: Path) -> BaseRelease | None:
    """Return the base of an adapter in a slot; None for a model that runs by itself.

    Raises:
        OSError, DeviceError, BundleError: See `find_base`.
    """
    return find_base(folder.parent.parent, _read_manifest(folder))


def _read_manifest(folder: Path) -> Manifest:
    try:
        return decode_manifest(read_bounded(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES))
    except BundleError as error:
        raise_disk_fault(error)
        raise


def base_basis(state_dir: Path, base: str) -> dict[str, str]:
    """Return the basis of an adapter besides the device: the release of its base.

    Args:
        state_dir: The agent's state folder.
        base: Name of the base; "" for a model that runs by itself.
    """
    if not base:
        return {}
    pointer = read_pointer(state_dir, base)
    if pointer is None:
        return {"base": "nothing serves"}
    bundle, chosen = pointer.bundle, pointer.choice.chosen
    return {"base": f"{bundle.name} {bundle.version} ({bundle.digest[:12]}) by {chosen}"}
