"""Adapters of a base in this process, by name: read once, and again when another release serves."""

import os
import threading
import weakref
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.generation.texts import TextModel
from edgepack.agent.runtime.adapters import AdaptedSession, read_adapter
from edgepack.agent.runtime.bases import AdapterOutageError, check_base
from edgepack.agent.runtime.plain_files import KEY_VARIABLE, plain_files
from edgepack.agent.runtime.sessions import Session
from edgepack.agent.state.decryption_key import read_key_file
from edgepack.agent.state.outages import adapters_of, describe_outage
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.readings import available_bytes
from edgepack.agent.telemetry.record import Record
from edgepack.bundle.adapters import AdapterPlaces
from edgepack.bundle.forms import read_manifest
from edgepack.bundle.slot import verify_variant
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.orders import BundleRef


class RecordOf(Protocol):
    """Returns the record of a variant of a release in this process."""

    def __call__(self, bundle: BundleRef, variant: str, provider: str) -> Record:
        """Return the record; made at the first call."""


class OpenedAdapter(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """Adapter, ready to write texts with its base.

    Attributes:
        bundle: The release.
        texts: The base's texts with the adapter.
        record: Counts its texts.
    """

    bundle: BundleRef
    texts: TextModel
    record: Record


class Adapters:
    """Adapters of an opened base; for any thread.

    Args:
        state_dir: The agent's state folder.
        base: The base's release.
        places: Its places for adapters; None without these.
        session: Its session.
        texts: Its texts.
        record_of: Returns the record of an adapter.
    """

    def __init__(
        self,
        state_dir: Path,
        base: ActivePointer,
        places: AdapterPlaces | None,
        session: Session,
        texts: TextModel,
        record_of: RecordOf,
    ) -> None:
        self._state_dir, self._base, self._places = state_dir, base, places
        self._session, self._texts, self._record_of = session, texts, record_of
        self._opened: dict[str, OpenedAdapter] = {}
        self._alive: weakref.WeakSet[OpenedAdapter] = weakref.WeakSet()
        self._guard = threading.Lock()

    def find(self, name: str) -> OpenedAdapter:
        """Return the serving release of an adapter.

        Raises:
            ValueError: The device has no such adapter.
            DeviceError: The adapter does not serve, is for another release of the base, has no
                memory, or cannot be read.
            BundleError: Its files differ from the installed files, or do not fit the base.
        """
        pointer = find_adapter(self._state_dir, name, self._base.bundle.name)
        with self._guard:
            opened = self._opened.get(name)
            if opened is None or opened.bundle != pointer.bundle:
                opened = self._opened[name] = self._open(pointer)
            return opened

    def counts_in(self, record: Record) -> bool:
        """Return True if an adapter counts in a record, also one that was replaced meanwhile."""
        return any(one.record is record for one in tuple(self._alive))

    def list(self) -> list[ActivePointer]:
        """Return the pointers of the device's adapters for this model, fitting or not."""
        return adapters_of(self._state_dir, self._base.bundle.name)

    def _open(self, pointer: ActivePointer) -> OpenedAdapter:
        record_of, choice = self._record_of, pointer.choice
        try:
            texts = adapt_texts(
                self._state_dir,
                pointer,
                self._base,
                self._places,
                self._session,
                self._texts,
                others=len(self._opened),
            )
        except BundleError as error:  # The agent looks at the slot when it hears this.
            damaged = record_of(pointer.bundle, choice.chosen, choice.provider)
            damaged.troubles = (f"it cannot be opened: {error.problem}",)
            raise
        record = record_of(pointer.bundle, choice.chosen, choice.provider)
        record.troubles = ()
        record.has_served = True
        facts = read_manifest(slot_folder(self._state_dir, pointer.digest)).facts
        record.sketches.expect(facts.reference, facts.description)
        opened = OpenedAdapter(bundle=pointer.bundle, texts=texts, record=record)
        self._alive.add(opened)
        return opened


def adapt_texts(
    state_dir: Path,
    pointer: ActivePointer,
    base: ActivePointer,
    places: AdapterPlaces | None,
    session: Session,
    texts: TextModel,
    *,
    others: int = 0,
) -> TextModel:
    """Return the texts of a base with an adapter.

    Args:
        state_dir: The agent's state folder.
        pointer: Names the adapter's release.
        base, places, session, texts: See `Adapters`.
        others: Number of adapters in memory, for messages.

    Raises:
        DeviceError: The adapter is for another release of the base, has no memory, or cannot be
            read.
        BundleError: Its files differ from the installed files, or do not fit the base.
    """
    bundle, folder = pointer.bundle, slot_folder(state_dir, pointer.digest)
    title = f"{bundle.name} {bundle.version}"
    try:
        manifest = verify_variant(folder, pointer.digest, pointer.choice.chosen)
    except OSError as error:
        raise DeviceError(
            f"the files of adapter {title} cannot be read now: {error.strerror}",
            found_in=str(error.filename or folder),
            remedy="check the disk; the files need not be damaged",
        ) from error
    if manifest.facts.adapter is None:
        raise DeviceError(f"{title} is not an adapter", found_in=str(folder))
    check_base(manifest.facts.adapter, title, base)
    needed, free = manifest.memory_bytes(pointer.choice.chosen), available_bytes()
    if free is not None and needed > free:
        raise DeviceError(
            f"adapter {title} needs {needed} bytes of memory beside {others} others of "
            f"{base.bundle.name}, and {free} are free",
            remedy="remove an adapter that is not used: edgepack-agent remove NAME",
        )
    variant = manifest.variant(pointer.choice.chosen)
    key_file = os.environ.get(KEY_VARIABLE) or read_key_file(state_dir)
    with plain_files(folder, variant, key_file, manifest) as plain:
        tensors = read_adapter(plain / variant.folder / variant.model_file, places)
    return texts.with_session(AdaptedSession(session, tensors))


def find_adapter(state_dir: Path, name: str, base: str) -> ActivePointer:
    """Return the pointer of a model's adapter.

    Args:
        state_dir: The agent's state folder.
        name: The adapter.
        base: The model.

    Raises:
        ValueError: The device has no such adapter.
        AdapterOutageError: The adapter does not serve now.
    """
    pointers = adapters_of(state_dir, base)
    found = next((one for one in pointers if one.bundle.name == name), None)
    if found is not None:
        return found
    if because := describe_outage(state_dir, name):
        raise AdapterOutageError(
            f"adapter {name!a:.120} does not serve: {because}",
            remedy="roll its base back, or install an adapter built for the release that serves",
        )
    known = ", ".join(one.bundle.name for one in pointers) or "none"
    raise ValueError(
        f"model '{base}' has no adapter {name!a:.120} on this device, which has {known}"
    )
