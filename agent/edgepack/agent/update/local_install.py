"""Installing, going back and removing without a network: the same life cycle as over the broker."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from edgepack.agent.state.slots import slot_folder
from edgepack.agent.update.journal import read_journal
from edgepack.agent.update.models import Models
from edgepack.agent.update.status import read_status
from edgepack.agent.update.transitions import title
from edgepack.agent.update.updater import Updater
from edgepack.bundle.chunks import fixed_chunks, offsets
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.bundle.verify import VerifiedBundle
from edgepack.errors import DeviceError
from edgepack.wire.need_bitmap import read_missing
from edgepack.wire.orders import BundleRef, FileRef, ModelOrder, RemoveModel, RunModel
from edgepack.wire.transfers import Need

MAX_WAIT_S = 0.5


class LocalLink:
    """Answers needs from a bundle's folder, as a depot does from its store.

    Args:
        bundle: The verified bundle, complete; None when everything is in a slot.

    Attributes:
        is_restarting: Whether a new agent must start, to continue the update.
    """

    def __init__(self, bundle: VerifiedBundle | None = None) -> None:
        self._starts: dict[str, tuple[Path, tuple[int, ...]]] = {}
        self._needs: list[Need] = []
        self.is_restarting = False
        if bundle is None:
            return
        for path in (MANIFEST_FILE, SIGNATURE_FILE):
            ref = file_ref(bundle.folder, path)
            starts = (*fixed_chunks(ref.size_bytes), ref.size_bytes)
            self._starts[ref.sha256] = (bundle.folder / path, starts)
        for entry in bundle.manifest.files:
            starts = (*offsets(entry.chunks), entry.size_bytes)
            self._starts.setdefault(entry.sha256, (bundle.folder / entry.path, starts))

    def listen(self, files: frozenset[str]) -> None:
        """Ignore the files: a local bundle has no broadcasts."""

    def ask(self, need: Need) -> None:
        """Keep a need until `deliver`."""
        self._needs.append(need)

    def end(self) -> None:
        """End the command: only another agent can continue the update."""
        self.is_restarting = True

    def deliver(self, accept: Callable[[str, int, bytes], object]) -> bool:
        """Hand out every chunk that was asked for.

        Returns:
            Whether anything was asked for.
        """
        needs, self._needs = self._needs, []
        for need in needs:
            for wanted in need.files:
                if wanted.sha256 not in self._starts:
                    raise DeviceError(
                        "files of the release are missing from its slot, and there is no network",
                        remedy="edgepack-agent install BUNDLE",
                    )
                path, starts = self._starts[wanted.sha256]
                with path.open("rb") as file:
                    for index in read_missing(wanted, len(starts) - 1):
                        file.seek(starts[index])
                        content = file.read(starts[index + 1] - starts[index])
                        accept(wanted.sha256, index, content)
        return bool(needs)


def local_offer(bundle: VerifiedBundle, *, soak_s: float, rollback: bool) -> RunModel:
    """Return the offer that stands for a bundle on this device."""
    facts = bundle.manifest.facts
    ref = BundleRef(
        name=facts.name, version=facts.version, release=facts.release, digest=bundle.digest
    )
    return _offer(ref, bundle.folder, soak_s=soak_s, rollback=rollback)


def rollback_offer(state_dir: Path, name: str) -> RunModel:
    """Return the offer to go back: from an update under way to the committed release, else to the
    release that was committed before.

    Args:
        state_dir: The agent's state folder.
        name: The model.

    Raises:
        DeviceError: There is no such model, or no release for a rollback.
    """
    _check_known(state_dir, name)
    journal = read_journal(state_dir, name)
    target = None
    if journal is not None:
        target = journal.previous if journal.is_at_rest else journal.committed
    if target is None:
        raise DeviceError(
            f"'{name}' has no release to go back to",
            remedy="edgepack-agent install BUNDLE, with the bundle of the release",
        )
    return slot_offer(target.bundle, slot_folder(state_dir, target.digest))


def slot_offer(bundle: BundleRef, folder: Path) -> RunModel:
    """Return the offer to go back to a release in a slot.

    Raises:
        DeviceError: The slot cannot be read.
    """
    try:
        return _offer(bundle, folder, soak_s=0.0, rollback=True)
    except OSError as error:
        raise DeviceError(
            f"the slot of {title(bundle)} cannot be read: {error.strerror}",
            found_in=str(folder),
            remedy="edgepack-agent install BUNDLE --rollback, with the bundle of the release",
        ) from error


def removal(state_dir: Path, name: str) -> RemoveModel:
    """Return the order that stands for removing a model.

    Raises:
        DeviceError: There is no such model.
    """
    _check_known(state_dir, name)
    return removal_order()


def removal_order() -> RemoveModel:
    """Return the order to remove a model, also one that is only being installed."""
    return RemoveModel(sequence=0, issued_at=time.time())


def carry_out(models: Models, link: LocalLink, name: str, order: ModelOrder) -> None:
    """Execute an order to its end, without changes to the device's other models.

    Raises:
        DeviceError: The order failed; the message has the reason, and the serving release is
            unchanged.
    """
    updater = models.install(name, order)
    try:
        _follow(updater, link)
        if link.is_restarting:
            updater.suspend()
            return
    except KeyboardInterrupt:
        raise DeviceError(
            f"interrupted in {updater.journal.state}; the order is not finished",
            remedy="start the agent, which continues the order, or install another release",
        ) from None
    if problem := why_not_done(updater, name, order):
        raise DeviceError(problem)


def why_not_done(updater: Updater, name: str, order: ModelOrder) -> str:
    """Return why an order at rest was not carried out, as a sentence; "" if it was."""
    journal, is_install = updater.journal, isinstance(order, RunModel)
    is_same = not isinstance(order, RunModel) or (
        isinstance(journal.offer, RunModel) and journal.offer.bundle == order.bundle
    )
    if is_same and journal.state == ("COMMITTED" if is_install else "REMOVED"):
        return ""
    asked = f"'{title(order.bundle)}'" if isinstance(order, RunModel) else f"'{name}'"
    done = "installed" if is_install else "removed"
    because = journal.because if is_same else "another order took its place"
    active = updater.active.bundle if updater.active else None
    keeps = f"{title(active)} keeps serving" if active else "no release of it serves"
    return f"{asked} was not {done} ({journal.state}): {because}; {keeps}"


def _follow(updater: Updater, link: LocalLink) -> None:
    while not updater.is_at_rest and not link.is_restarting:
        wait_s = updater.advance()
        if updater.disk_fault:
            raise DeviceError(
                f"the agent's state cannot be written: {updater.disk_fault}",
                remedy="free disk space, run the command again; the serving release is unchanged",
            )
        if not link.deliver(updater.accept_chunk):
            time.sleep(MAX_WAIT_S if wait_s is None else min(wait_s, MAX_WAIT_S))


def _check_known(state_dir: Path, name: str) -> None:
    models = read_status(state_dir).models
    installed = [one for one, found in models.items() if found.active or found.previous]
    if name not in installed:
        raise DeviceError(
            f"there is no model '{name}' on this device",
            found_in=f"installed: {', '.join(installed) or 'none'}",
            remedy="edgepack-agent status lists them",
        )


def _offer(bundle: BundleRef, folder: Path, *, soak_s: float, rollback: bool) -> RunModel:
    return RunModel(
        sequence=0,
        rollout="",
        bundle=bundle,
        manifest=file_ref(folder, MANIFEST_FILE),
        signature=file_ref(folder, SIGNATURE_FILE),
        soak_s=soak_s,
        rollback=rollback,
        issued_at=time.time(),
    )


def file_ref(folder: Path, path: str) -> FileRef:
    """Name a file whole, as an offer does."""
    content = (folder / path).read_bytes()
    return FileRef(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
