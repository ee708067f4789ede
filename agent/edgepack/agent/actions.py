"""What the agent does in each state of the life cycle.

Each action can run again from its beginning: after a restart it does. It ends (`Ended`), or it
waits for time or messages (`Wait`) and is called again. What the action must remember between
two calls, and may lose in a restart, is in `_Scratch`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.asking import Asking
from edgepack.agent.choice import choose
from edgepack.agent.download import Download, HeadDownload, Missing, Received
from edgepack.agent.hooks import HookVerdict, update_facts
from edgepack.agent.journal import Journal
from edgepack.agent.lifecycle import Outcome, State
from edgepack.agent.matching import match_variants
from edgepack.agent.offer import (
    check_identity,
    check_release,
    check_room,
    check_time,
    is_active,
)
from edgepack.agent.pointer import ActivePointer, read_pointer, remove_pointer
from edgepack.agent.soak import why_unfit
from edgepack.agent.surroundings import Surroundings
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    HOOKS_FOLDER,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    FileEntry,
    Manifest,
)
from edgepack.bundle.signature import verify_envelope
from edgepack.bundle.verify import verify_folder, verify_manifest
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.messages import BundleRef, Desired, DeviceFacts, ProbeResult, Telemetry

log = logging.getLogger(__name__)

FIRST_RETRY_S = 5.0
MAX_RETRY_S = 600.0
SOAK_LOOK_S = 0.5
"""How often a soaking model is looked at."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An action ended.

    Attributes:
        outcome: How.
        because: The reason, one sentence with its numbers.
        changes: Fields of the journal to save together with the transition.
    """

    outcome: Outcome
    because: str
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wait:
    """An action goes on later; None waits for a message."""

    seconds: float | None


Step = Ended | Wait


@dataclass
class _Scratch:
    """What an action remembers while the state lasts."""

    hooks_done: set[tuple[str, str]] = field(default_factory=set)
    retry_s: float = FIRST_RETRY_S
    retry_at: float = 0.0
    head: HeadDownload | None = None
    download: Download | None = None
    was_rechecked: bool = False
    asking: Asking | None = None
    trouble: OSError | None = None
    probes: list[ProbeResult] = field(default_factory=list)
    soak_from: float | None = None
    windows: list[Telemetry] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    manifest: Manifest | None = None


class Actions:
    """Carries out the action of a state.

    Args:
        around: The world.
        note_hook: Is told of every hook that did not say go.
    """

    def __init__(self, around: Surroundings, note_hook: Callable[[HookVerdict], None]) -> None:
        self._around = around
        self._note_hook = note_hook
        self._scratch = _Scratch()
        self._facts: DeviceFacts | None = None
        self._by_state: dict[State, Callable[[], Step]] = {
            "OFFERED": self._judge_offer,
            "DOWNLOADING": self._download,
            "VERIFIED": self._before_staging,
            "STAGED": self._after_staging,
            "PROBING": self._probe,
            "ACTIVATING": self._activate,
            "SOAKING": self._soak,
            "COMMITTED": self._settle_commit,
            "ROLLING_BACK": self._roll_back,
        }

    @property
    def facts(self) -> DeviceFacts:
        """What the device is, as last read."""
        if self._facts is None:
            self._facts = self._around.tools.read_facts()
        return self._facts

    @property
    def progress(self) -> float:
        """Share of the bytes that are there, 0..1, while downloading."""
        download = self._scratch.download
        return download.progress if download else 0.0

    def act(self) -> Step:
        """Runs the action of the journal's state, or goes on with it.

        Raises:
            OSError: The disk is full or broken.
            EdgepackError: What was fetched, or this device, does not allow to go on.
        """
        action = self._by_state.get(self._journal.state)
        return action() if action else Wait(seconds=None)

    def leave(self) -> None:
        """Forgets what an action remembered: the state has changed, or the offer has."""
        if self._scratch.download:
            self._scratch.download.close()
        if self._scratch.asking:
            self._around.link.listen(frozenset())
        self._scratch = _Scratch()

    def suspend(self) -> None:
        """Notes on the disk how far a download is; the agent is about to stop."""
        if self._scratch.download:
            self._scratch.download.note()

    def accept_chunk(self, sha256: str, index: int, content: bytes) -> Received:
        """Takes a chunk that came, if anything waits for it."""
        scratch = self._scratch
        target = scratch.download or scratch.head
        if target is None or scratch.asking is None or scratch.trouble:
            return "unwanted"
        try:
            received = target.accept(sha256, index, content)
        except OSError as error:
            scratch.trouble = error
            return "unwanted"
        if received in ("new", "duplicate"):
            scratch.asking.note_chunk(self._now(), is_new=received == "new")
        if received == "new" and not target.lacks(sha256):
            self._around.link.listen(_names(target.missing()))
        return received

    def note_connected(self) -> None:
        """The broker is there again."""
        if self._scratch.asking:
            self._scratch.asking.note_connected(self._now())

    # -- OFFERED

    def _judge_offer(self) -> Step:
        """Judges an offer; nothing is written before all is found right.

        1. Time, release, and whether there is anything to do.
        2. The device's hooks may refuse before anything is fetched.
        3. Manifest and signature come, from a slot that has them or from outside.
        4. A trusted key signed them, and they are what was offered.
        5. A variant fits this device, and there is room.
        6. The hooks have the last word.
        """
        around, offer = self._around, self._offer
        # 1
        check_time(offer, around.clock.wall())
        pointer = read_pointer(around.state_dir)
        if is_active(offer, pointer):
            return Ended(outcome="already", because="this bundle serves already")
        check_release(offer, self._journal)
        # 2
        if held_up := self._run_hooks("offered", "before"):
            return held_up
        # 3
        if held_up := self._fetch_head():
            return held_up
        head = self._scratch.head
        if head is None:
            raise RuntimeError("there is no head although it was fetched")
        signature, content = head.content(offer.signature), head.content(offer.manifest)
        # 4
        signed = verify_envelope(signature, around.keys)
        manifest = verify_manifest(content, signed)
        check_identity(offer, signed, manifest)
        # 5
        self._facts = around.tools.read_facts()
        config = around.config
        matches = match_variants(manifest, self._facts, config.providers, config.trust)
        names = tuple(variant.name for variant in matches.candidates)
        if not names:
            reasons = "; ".join(f"{name}: {why}" for name, why in matches.rejected.items())
            raise DeviceError(
                f"none of {len(manifest.variants)} variants fits this device: {reasons}"
            )
        around.slots.keep_only(self._kept(pointer) | {self._digest})
        wanted = Download(around.slots, self._digest, wanted_files(manifest, names))
        check_room(
            max(0, wanted.size_bytes - wanted.allocated_bytes()),
            free_bytes=around.slots.free_bytes(),
            reserve_bytes=config.limits.disk_reserve_bytes,
        )
        # 6
        if held_up := self._run_hooks("offered", "after"):
            return held_up
        around.slots.write_file(self._digest, SIGNATURE_FILE, signature)
        around.slots.write_file(self._digest, MANIFEST_FILE, content)
        because = f"{len(names)} of {len(manifest.variants)} variants fit: {', '.join(names)}"
        changes = {"candidates": names, "rejected": matches.rejected}
        return Ended(outcome="success", because=because, changes=changes)

    def _fetch_head(self) -> Wait | None:
        scratch, offer = self._scratch, self._offer
        if scratch.head is None:
            head = HeadDownload((offer.manifest, offer.signature))
            for ref in (offer.manifest, offer.signature):
                head.give(ref, self._around.slots.read_file(self._digest, ref.path))
            scratch.head = head
            if head.missing():
                self._start_asking(head.missing())
        return self._ask_for(scratch.head.missing())

    # -- DOWNLOADING

    def _download(self) -> Step:
        scratch = self._scratch
        if scratch.trouble:
            return self._give_up_download(scratch.trouble)
        try:
            if scratch.download is None:
                self._open_download()
            download = scratch.download
            if download is None:
                raise RuntimeError("there is no download although it was opened")
            if held_up := self._ask_for(download.missing()):
                return held_up
            download.finish()
        except OSError as error:
            return self._give_up_download(error)
        folder = self._around.slots.folder(self._digest)
        try:
            verify_folder(folder, self._around.keys, complete=False)
        except BundleError:
            if scratch.was_rechecked:
                raise
            # A disk may have lost what it was told to keep: look at every chunk once.
            log.warning("%s is not what was fetched; looking at every chunk", folder)
            self._around.slots.forget_held(self._digest)
            scratch.download, scratch.was_rechecked = None, True
            return Wait(seconds=0.0)
        because = f"{download.size_bytes} bytes are there and are what was signed"
        return Ended(outcome="success", because=because)

    def _open_download(self) -> None:
        around, digest = self._around, self._digest
        manifest = self._read_manifest()
        every = [entry.path for entry in manifest.files]
        around.slots.remove_strangers(digest, (*every, MANIFEST_FILE, SIGNATURE_FILE))
        download = Download(around.slots, digest, wanted_files(manifest, self._journal.candidates))
        download.reserve()
        self._scratch.download = download
        download.resume(check=self._scratch.was_rechecked)
        if download.missing():
            copied = download.take_stored(around.slots.stored_chunks(apart_from=digest))
            log.info("bundle=%s reused_bytes=%d", _title(self._offer.bundle), copied)
            download.note()
        self._start_asking(download.missing())

    def _give_up_download(self, error: OSError) -> Ended:
        """The disk is full: what was fetched makes room for the journal."""
        if self._scratch.download:
            self._scratch.download.close()
            self._scratch.download = None
        kept = self._kept(read_pointer(self._around.state_dir))
        if self._digest not in kept:
            self._around.slots.remove(self._digest)
        free_bytes = self._around.slots.free_bytes()
        because = f"the disk failed while downloading: {error.strerror} ({free_bytes} bytes free)"
        return Ended(outcome="failure", because=because)

    # -- VERIFIED, STAGED, PROBING

    def _before_staging(self) -> Step:
        return self._run_hooks("staged", "before") or Ended(
            outcome="success", because="the hooks let it be staged"
        )

    def _after_staging(self) -> Step:
        return self._run_hooks("staged", "after") or Ended(
            outcome="success", because="staged, to be probed"
        )

    def _probe(self) -> Step:
        """Probes one candidate a call, so that a newer offer need not wait for all."""
        journal, probes = self._journal, self._scratch.probes
        manifest = self._read_manifest()
        folder = self._around.slots.folder(self._digest)
        if len(probes) < len(journal.candidates):
            name = journal.candidates[len(probes)]
            result = self._around.tools.probe(folder, manifest.variant(name))
            probes.append(result)
            return Wait(seconds=0.0)
        preference = [variant.name for variant in manifest.variants]
        choice = choose(
            probes, journal.rejected, self.facts, self._around.config.providers, preference
        )
        if not choice.chosen:
            return Ended(outcome="failure", because=choice.because)
        pointer = read_pointer(self._around.state_dir)
        back = pointer if pointer and pointer.digest != self._digest else None
        return Ended(
            outcome="success",
            because=choice.because,
            changes={"choice": choice, "back": back},
        )

    # -- ACTIVATING, SOAKING, COMMITTED

    def _activate(self) -> Step:
        around, choice = self._around, self._journal.choice
        if choice is None:
            raise DeviceError("the journal has no choice of a variant to activate")
        if held_up := self._run_hooks("activating", "before"):
            return held_up
        pointer = read_pointer(around.state_dir)
        if pointer is None or pointer.digest != self._digest or pointer.choice != choice:
            around.tools.collect()  # What was said before the switch is not about the new model.
            around.tools.write_pointer(
                around.state_dir,
                ActivePointer(
                    bundle=self._offer.bundle,
                    choice=choice,
                    since=around.clock.wall(),
                    committed=False,
                ),
            )
        if held_up := self._run_hooks("activating", "after"):
            return held_up
        because = f"{choice.chosen} serves; it soaks for {self._offer.soak_s:g} s"
        return Ended(outcome="success", because=because)

    def _soak(self) -> Step:
        scratch, offer = self._scratch, self._offer
        if scratch.soak_from is None:
            scratch.soak_from = self._now()
        collected = self._around.tools.collect()
        scratch.windows += collected.telemetry
        scratch.troubles += collected.troubles
        because = self._why_gone() or why_unfit(scratch.windows, scratch.troubles, self._digest)
        if because:
            return Ended(outcome="failure", because=because)
        left_s = scratch.soak_from + offer.soak_s - self._now()
        if left_s > 0:
            return Wait(seconds=min(left_s, SOAK_LOOK_S))
        if held_up := self._run_hooks("committed", "before"):
            return held_up
        bundle, journal = offer.bundle, self._journal
        highest = max(bundle.release, journal.highest_releases.get(bundle.name, 0))
        return Ended(
            outcome="success",
            because=f"soaked for {offer.soak_s:g} s without trouble",
            changes={
                "previous": journal.back.bundle if journal.back else journal.previous,
                "highest_releases": journal.highest_releases | {bundle.name: highest},
            },
        )

    def _why_gone(self) -> str:
        pointer = read_pointer(self._around.state_dir)
        if pointer is None or pointer.digest != self._digest:
            return "the pointer does not lead to the model that soaks any more"
        variant = self._read_manifest().variant(pointer.choice.chosen)
        model = Path(variant.folder) / variant.model_file
        if not (self._around.slots.folder(self._digest) / model).is_file():
            return f"{model} disappeared from its slot while it soaked"
        return ""

    def _settle_commit(self) -> Step:
        """Makes the commit final; a hook can delay nothing but itself."""
        around, journal = self._around, self._journal
        if journal.is_settled:
            return Wait(seconds=None)
        pointer = read_pointer(around.state_dir)
        if pointer and pointer.digest == self._digest and not pointer.committed:
            pointer = msgspec.structs.replace(pointer, committed=True)
            around.tools.write_pointer(around.state_dir, pointer)
        around.slots.keep_only(self._kept(pointer))
        around.slots.forget_held(self._digest)
        if journal.choice is not None:
            held_up = self._run_hooks("committed", "after")
            if isinstance(held_up, Wait) and journal.pending is None:
                return held_up
        around.store.update(is_settled=True)
        return Wait(seconds=None)

    # -- ROLLING_BACK

    def _roll_back(self) -> Step:
        """Puts back what served before; no hook can keep it from that."""
        around, journal = self._around, self._journal
        was_chosen = journal.choice is not None
        if was_chosen:
            self._tell_hooks("rolled_back", "before")
        pointer = read_pointer(around.state_dir)
        if was_chosen and pointer and pointer.digest == self._digest and not pointer.committed:
            if journal.back is None:
                remove_pointer(around.state_dir)
                pointer = None
            else:
                pointer = msgspec.structs.replace(journal.back, since=around.clock.wall())
                around.tools.write_pointer(around.state_dir, pointer)
        if self._digest not in self._kept(pointer):
            around.slots.remove(self._digest)
        if was_chosen:
            self._tell_hooks("rolled_back", "after")
        return Ended(outcome="success", because=journal.because)

    # -- shared by several states

    @property
    def _journal(self) -> Journal:
        return self._around.store.journal

    @property
    def _offer(self) -> Desired:
        offer = self._journal.offer
        if offer is None:
            raise DeviceError(f"the journal is in {self._journal.state} without an offer")
        return offer

    @property
    def _digest(self) -> str:
        return self._offer.bundle.digest

    def _now(self) -> float:
        return self._around.clock.monotonic()

    def _kept(self, pointer: ActivePointer | None) -> frozenset[str]:
        """Slots that no update may touch: what serves, and the ways back."""
        journal = self._journal
        kept = {ref.digest for ref in (journal.previous,) if ref}
        return frozenset(kept | {p.digest for p in (pointer, journal.back) if p})

    def _read_manifest(self) -> Manifest:
        """The manifest of the update's slot, verified anew in every state."""
        if self._scratch.manifest:
            return self._scratch.manifest
        slots = self._around.slots
        signature = slots.read_file(self._digest, SIGNATURE_FILE)
        content = slots.read_file(self._digest, MANIFEST_FILE)
        if signature is None or content is None:
            raise DeviceError(
                "manifest or signature disappeared from the slot",
                found_in=str(slots.folder(self._digest)),
            )
        manifest = verify_manifest(content, verify_envelope(signature, self._around.keys))
        self._scratch.manifest = manifest
        return manifest

    def _start_asking(self, missing: tuple[Missing, ...]) -> None:
        self._scratch.asking = Asking(self._now(), self._around.rng)
        self._around.link.listen(_names(missing))

    def _ask_for(self, missing: tuple[Missing, ...]) -> Wait | None:
        """Publishes the need when it is time to; None when nothing is missing."""
        asking = self._scratch.asking
        if not missing or asking is None:
            return None
        if self._now() >= asking.due_at:
            self.suspend()
            for need in asking.ask(self._digest, missing, self._now()):
                self._around.link.ask(need)
        return Wait(seconds=max(0.0, asking.due_at - self._now()))

    def _run_hooks(self, stage: str, when: str) -> Ended | Wait | None:
        """Runs the hooks of a stage once; None when they said go."""
        scratch, around = self._scratch, self._around
        if (stage, when) in scratch.hooks_done:
            return None
        if self._now() < scratch.retry_at:
            return Wait(seconds=scratch.retry_at - self._now())
        verdict = self._tell_hooks(stage, when)
        if verdict.verdict == "go":
            scratch.hooks_done.add((stage, when))
            return None
        if verdict.verdict == "refuse":
            return Ended(outcome="failure", because=verdict.because)
        wait_s = scratch.retry_s * around.rng.uniform(1.0, 1.2)
        scratch.retry_s = min(MAX_RETRY_S, 2 * scratch.retry_s)
        scratch.retry_at = self._now() + wait_s
        return Wait(seconds=wait_s)

    def _tell_hooks(self, stage: str, when: str) -> HookVerdict:
        verdict = self._around.tools.run_hooks(
            stage, when, self._hook_folders(), self._hook_facts()
        )
        if verdict.verdict != "go":
            self._note_hook(verdict)
        return verdict

    def _hook_folders(self) -> tuple[Path, ...]:
        """The device's hooks; the bundle's own too, once its files were verified."""
        folder = self._around.config.hooks.folder
        own = (Path(folder),) if folder else ()
        if self._journal.state in ("OFFERED", "DOWNLOADING"):
            return own
        return (*own, self._around.slots.folder(self._digest) / HOOKS_FOLDER)

    def _hook_facts(self) -> dict[str, str]:
        folder = self._around.slots.folder(self._digest)
        return update_facts(
            device=self._around.config.device,
            state_dir=self._around.state_dir,
            bundle=self._offer.bundle,
            bundle_folder=folder if folder.is_dir() else None,
            choice=self._journal.choice,
            because=self._journal.because,
        )


def wanted_files(manifest: Manifest, candidates: tuple[str, ...]) -> tuple[FileEntry, ...]:
    """The files that a device fetches: its candidates, the golden samples, the hooks."""
    shared = (
        entry
        for entry in manifest.facts.files
        if entry.path == GOLDEN_FILE or entry.path.startswith(f"{HOOKS_FOLDER}/")
    )
    own = (entry for name in candidates for entry in manifest.variant(name).facts.files)
    return (*shared, *own)


def _names(missing: tuple[Missing, ...]) -> frozenset[str]:
    return frozenset(one.sha256 for one in missing)


def _title(bundle: BundleRef) -> str:
    return f"{bundle.name}-{bundle.version}"
