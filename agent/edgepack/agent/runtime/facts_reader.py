"""The agent's reader of device facts: ONNX Runtime is loaded in a child process alone.

The library with its providers takes 20 to 100 MB for as long as a process lives. So a child reads
the facts, and only if the environment changed since: files of the runtime and its plug-ins, kernel
modules, drivers or device nodes.
"""

import importlib.util
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.child import run_child
from edgepack.agent.runtime.facts import describe_device, mark_forbidden, read_drivers
from edgepack.agent.runtime.provider_table import KNOWN
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.python_child import python_command
from edgepack.wire.reports import DeviceFacts

log = logging.getLogger(__name__)

CHILD = python_command("edgepack.agent.runtime.facts")
TIMEOUT_S = 120.0
"""Of a cold start from a slow disk."""
LONGEST_S = 3600.0
"""Facts are read again after this time even if nothing seems to have changed."""
MODULES = ("onnxruntime", *(one.plugin.module for one in KNOWN if one.plugin is not None))
NODES = ("accel", "dri", "kfd", "fastrpc-cdsp", "fastrpc-adsp", "nvidia0")
"""Device nodes of accelerators, in /dev."""


class FactsReader:
    """Reads the facts of this device, from any thread.

    Args:
        config: The device's provider settings; forbidden providers are marked.

    Attributes:
        config: See above; a reload of the settings replaces it.
        lock: Held while a child runs.
    """

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        self._known: DeviceFacts | None = None
        self._seen: tuple[object, ...] = ()
        self._until = 0.0
        self.lock = threading.Lock()

    def read(self) -> DeviceFacts:
        """Return the facts; without an answer of the child, no provider is available."""
        with self.lock:
            seen = (tuple(_stamps()), read_drivers())
            if self._known is None or seen != self._seen or time.monotonic() >= self._until:
                self._known = self._ask()
                is_known = bool(self._known.runtime)
                self._until = time.monotonic() + (LONGEST_S if is_known else 0.0)
                self._seen = seen
            return mark_forbidden(self._known, self.config)

    def _ask(self) -> DeviceFacts:
        ending = run_child(CHILD, b"", timeout_s=TIMEOUT_S)
        because = ending.because
        if ending.answer is not None:
            try:
                return decode_json(ending.answer, DeviceFacts)
            except msgspec.DecodeError as error:
                because = f"its answer cannot be read: {error}"
        log.warning("a child process that reads the facts of the device failed: %s", because)
        return describe_device(
            DeviceError(
                f"onnxruntime cannot be loaded: {because}",
                remedy="reinstall the wheel for this machine and its Python",
            )
        )


def _stamps() -> Iterator[tuple[str, int, int]]:
    """Yield path, time of change and size of what the answer depends on."""
    importlib.invalidate_caches()  # A package may have come or gone.
    places = [Path("/dev", name) for name in NODES]
    for module in MODULES:
        spec = importlib.util.find_spec(module)
        for folder in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
            places += [folder.parent, folder, folder / "capi"]
    for place in places:
        try:
            found = place.stat()
            if stat.S_ISCHR(found.st_mode):
                yield str(place), 0, found.st_rdev
                continue
            yield str(place), found.st_mtime_ns, found.st_size
            if place.name in ("capi", *MODULES):
                with os.scandir(place) as entries:
                    for entry in entries:
                        found = entry.stat()
                        yield entry.path, found.st_mtime_ns, found.st_size
        except OSError:
            continue
