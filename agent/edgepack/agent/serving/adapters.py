"""Adapters of a base in this process, by name: read once, and again when another release serves."""

import os
import threading
import weakref
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.generation.texts import TextModel
from edgepack.agent.runtime.adapters import AdaptedSession, read_adapter
from edgepack.agent.runtime.bases import check_base
from edgepack.agent.runtime.plain_files import KEY_VARIABLE, plain_files
from edgepack.agent.runtime.sessions import Session
from edgepack.agent.state.decryption_key import read_key_file
from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.pointer import ActivePointer, active_models, read_pointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.readings import available_bytes
from edgepack.agent.telemetry.record import Record
from edgepack.bundle.adapters import AdapterPlaces
from edgepack.bundle.slot import verify_variant
from edgepack.errors import DeviceError
from edgepack.wire.messages import BundleRef


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
            DeviceError: The adapter is for another release of the base, has no memory, or cannot be
                read.
            BundleError: Its files differ from the installed files, or do not fit the base.
        """
        pointer = read_pointer(self._state_dir, name) if MODEL_NAME.fullmatch(name) else None
        if pointer is None or pointer.base != self._base.bundle.name:
            own = self._base.bundle.name
            known = [one for one in active_models(self._state_dir) if self._is_of(one, own)]
            self._opened.pop(name, None)
            raise ValueError(
                f"model '{own}' has no adapter {name!a:.120} on this device, which has "
                f"{', '.join(known) or 'none'}"
            )
        with self._guard:
            opened = self._opened.get(name)
            if opened is None or opened.bundle != pointer.bundle:
                opened = self._opened[name] = self._open(pointer)
            return opened

    def counts_in(self, record: Record) -> bool:
        """Return True if an adapter counts in a record, also one that was replaced meanwhile."""
        return any(one.record is record for one in tuple(self._alive))

    def _is_of(self, name: str, base: str) -> bool:
        pointer = read_pointer(self._state_dir, name)
        return pointer is not None and pointer.base == base

    def _open(self, pointer: ActivePointer) -> OpenedAdapter:
        folder = slot_folder(self._state_dir, pointer.digest)
        variant_name = pointer.choice.chosen
        bundle = pointer.bundle
        title = f"{bundle.name} {bundle.version}"
        try:
            manifest = verify_variant(folder, pointer.digest, variant_name)
        except OSError as error:
            raise DeviceError(
                f"the files of adapter {title} cannot be read now: {error.strerror}",
                found_in=str(error.filename or folder),
                remedy="check the disk; the files need not be damaged",
            ) from error
        adapter = manifest.facts.adapter
        if adapter is None:
            raise DeviceError(f"{title} is not an adapter", found_in=str(folder))
        check_base(adapter, title, self._base)
        variant = manifest.variant(variant_name)
        needed = sum(entry.size_bytes for entry in variant.facts.files)
        free = available_bytes()
        if free is not None and needed > free:
            raise DeviceError(
                f"adapter {title} needs {needed} bytes of memory beside {len(self._opened)} others "
                f"of {self._base.bundle.name}, and {free} are free",
                remedy="remove an adapter that is not used: edgepack-agent remove NAME",
            )
        key_file = os.environ.get(KEY_VARIABLE) or read_key_file(self._state_dir)
        with plain_files(folder, variant, key_file, manifest) as plain:
            tensors = read_adapter(plain / variant.folder / variant.model_file, self._places)
        session = AdaptedSession(self._session, tensors)
        record = self._record_of(bundle, variant_name, pointer.choice.provider)
        record.has_served = True
        texts = self._texts.with_session(session)
        opened = OpenedAdapter(bundle=bundle, texts=texts, record=record)
        self._alive.add(opened)
        return opened
