"""Installing from a bundle that lies on this device: the same life cycle, without a network."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from edgepack.agent.transfer.need_bitmap import unpack_missing
from edgepack.agent.update.lifecycle import RESTING
from edgepack.agent.update.updater import Updater
from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.bundle.verify import VerifiedBundle
from edgepack.errors import DeviceError
from edgepack.wire.messages import BundleRef, Desired, FileRef, Need

MAX_WAIT_S = 0.5


class LocalLink:
    """Answers needs from a bundle's folder, as a depot does from its store.

    Args:
        bundle: The verified bundle, complete.
    """

    def __init__(self, bundle: VerifiedBundle) -> None:
        self._folder = bundle.folder
        self._starts: dict[str, tuple[Path, tuple[int, ...]]] = {}
        self._needs: list[Need] = []
        for path in (MANIFEST_FILE, SIGNATURE_FILE):
            ref = file_ref(bundle.folder, path)
            starts = (*fixed_chunks(ref.size_bytes), ref.size_bytes)
            self._starts[ref.sha256] = (bundle.folder / path, starts)
        for entry in bundle.manifest.files:
            starts = (*offsets(entry.chunks), entry.size_bytes)
            self._starts.setdefault(entry.sha256, (bundle.folder / entry.path, starts))

    def listen(self, files: frozenset[str]) -> None:
        """Nothing is broadcast here."""

    def ask(self, need: Need) -> None:
        """Keeps a need until `deliver`."""
        self._needs.append(need)

    def deliver(self, accept: Callable[[str, int, bytes], object]) -> bool:
        """Hands out every chunk that was asked for.

        Returns:
            Whether anything was asked for.
        """
        needs, self._needs = self._needs, []
        for need in needs:
            for wanted in need.files:
                path, starts = self._starts[wanted.sha256]
                with path.open("rb") as file:
                    for index in unpack_missing(wanted):
                        file.seek(starts[index])
                        content = file.read(starts[index + 1] - starts[index])
                        accept(wanted.sha256, index, content)
        return bool(needs)


def local_offer(bundle: VerifiedBundle, *, soak_s: float, rollback: bool) -> Desired:
    """The offer that stands for a bundle on this device."""
    facts = bundle.manifest.facts
    return Desired(
        sequence=0,
        rollout="",
        bundle=BundleRef(
            name=facts.name, version=facts.version, release=facts.release, digest=bundle.digest
        ),
        manifest=file_ref(bundle.folder, MANIFEST_FILE),
        signature=file_ref(bundle.folder, SIGNATURE_FILE),
        soak_s=soak_s,
        rollback=rollback,
        issued_at=time.time(),
    )


def install(updater: Updater, link: LocalLink, offer: Desired) -> None:
    """Carries an offer to its end.

    Raises:
        DeviceError: It was not committed; the reason says why, and what serves is unchanged.
    """
    updater.start()
    updater.install(offer)
    while True:
        wait_s = updater.advance()
        if link.deliver(updater.accept_chunk):
            continue
        journal = updater.journal
        if journal.state in RESTING and journal.is_settled and journal.pending is None:
            break
        time.sleep(MAX_WAIT_S if wait_s is None else min(wait_s, MAX_WAIT_S))
    if journal.state != "COMMITTED":
        title = f"{offer.bundle.name}-{offer.bundle.version}"
        active = updater.active.bundle if updater.active else None
        keeps = f"{active.name}-{active.version} keeps serving" if active else "no model serves"
        raise DeviceError(
            f"'{title}' was not installed ({journal.state}): {journal.because}; {keeps}"
        )


def file_ref(folder: Path, path: str) -> FileRef:
    """Names a file whole, as an offer does."""
    content = (folder / path).read_bytes()
    return FileRef(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
