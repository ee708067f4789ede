"""Context of the life cycle's actions: the journal's values, long work, hooks, requests."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.hooks.firmware import FirmwareStep
from edgepack.agent.hooks.runner import HookVerdict, update_facts
from edgepack.agent.runtime.bases import base_basis
from edgepack.agent.runtime.basis import basis_of
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.telemetry.shadowed import Shadowed
from edgepack.agent.transfer.ahead import Taken
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.manifest_download import ManifestDownload
from edgepack.agent.transfer.need_scheduler import NeedScheduler
from edgepack.agent.update.dependencies import AgentDependencies, Installer, ModelParts
from edgepack.agent.update.footprint import serving_bytes
from edgepack.agent.update.journal import Journal
from edgepack.agent.update.lifecycle import Outcome
from edgepack.agent.update.work import Job, Work, Worker
from edgepack.agent.watch.ledger import Ledger
from edgepack.bandwidth import parse_bandwidth
from edgepack.bundle.agent_release import AGENT_RELEASE, environment_kind
from edgepack.bundle.manifest import (
    HOOKS_FOLDER,
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Firmware,
    Manifest,
    decode_manifest,
)
from edgepack.errors import DeviceError, EdgepackError
from edgepack.wire.orders import RunModel
from edgepack.wire.reports import DeviceFacts, ProbeResult
from edgepack.wire.telemetry import Telemetry

FIRST_RETRY_S = 5.0
MAX_RETRY_S = 600.0
CLOSED_S = 30.0
"""How often a device looks whether the hours have come in which it may fetch something."""
_HOOKS = "hooks"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An action ended.

    Attributes:
        outcome: How.
        because: The reason, a sentence with its numbers.
        changes: Fields of the journal to save together with the transition.
    """

    outcome: Outcome
    because: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """An action continues later; None waits for a message.

    Attributes:
        seconds: When to call again at the latest.
        because: A reason that nobody would expect; reported once. "" for none.
    """

    seconds: float | None
    because: str = ""


Step = Ended | Wait


class NotYetError(Exception):
    """Signal that long work is not done; the action is called again at its end."""


class Evidence(msgspec.Struct):
    """The probes of a serving release; a step that waits for a probe runs again from its start.

    Attributes:
        checked: By slot and variant: why its files cannot be used; "" if usable.
        probes: By slot and variant.
        is_fresh: Whether earlier verdicts were forgotten.
        probed_at: When the probe of a slow variant had ended, by the context's clock, seconds; None
            before.
    """

    checked: dict[tuple[str, str], str] = {}
    probes: dict[tuple[str, str], ProbeResult] = {}
    is_fresh: bool = False
    probed_at: float | None = None


class Scratch(msgspec.Struct):
    """Memory of an action for as long as the state lasts.

    A download that is not open yet, or not any more, belongs to the background work.
    """

    jobs: dict[str, Job] = msgspec.field(default_factory=dict)
    hooks_done: set[tuple[str, str]] = msgspec.field(default_factory=set)
    steps_done: set[str] = msgspec.field(default_factory=set)
    failures: int = 0
    until: float = 0.0
    patient_until: float = 0.0
    is_restarting: bool = False
    retry_s: float = FIRST_RETRY_S
    retry_at: float = 0.0
    manifest_download: ManifestDownload | None = None
    is_judged: bool = False
    unsupported: Mapping[str, str] | None = None
    waits: set[str] = msgspec.field(default_factory=set)
    download: Download | None = None
    is_prepared: bool = False
    is_open: bool = False
    taken: tuple[Taken, ...] = ()
    was_rechecked: bool = False
    reopen_at: float = 0.0
    need_scheduler: NeedScheduler | None = None
    was_told_complete: bool = False
    came_bytes: int = 0
    is_limited: bool = False
    trouble: OSError | None = None
    probes: list[ProbeResult] = msgspec.field(default_factory=list)
    evidence: Evidence = msgspec.field(default_factory=Evidence)
    soak_from: float | None = None
    soak_until: float = 0.0
    windows: list[Telemetry] = msgspec.field(default_factory=list)
    troubles: list[str] = msgspec.field(default_factory=list)
    shadowed: dict[str, Shadowed] = msgspec.field(default_factory=dict)
    ledger: Ledger | None = None
    pace: Pace = Pace()
    short: Pace = Pace()
    manifest: Manifest | None = None
    faults: dict[str, str] = msgspec.field(default_factory=dict)


class UpdateContext:
    """Context of a model's update.

    Args:
        deps: Dependencies of all updates.
        model: Dependencies of this update.
        note: Is notified of every hook that did not say go, and of every problem: kind and reason.

    Attributes:
        probed_basis: Basis of the latest choice; empty before this process has probed.
    """

    def __init__(
        self, deps: AgentDependencies, model: ModelParts, note: Callable[[str, str], None]
    ) -> None:
        self.deps = deps
        self.model = model
        self.note = note
        self.scratch = Scratch()
        self._left: list[Scratch] = []
        self._facts: DeviceFacts | None = None
        self.probed_basis: dict[str, str] = {}

    @property
    def journal(self) -> Journal:
        """The last saved journal."""
        return self.model.store.journal

    @property
    def offer(self) -> RunModel:
        """Order of the update.

        Raises:
            DeviceError: There is nothing, although the state says so.
        """
        offer = self.journal.offer
        if not isinstance(offer, RunModel):
            raise DeviceError(f"the journal is in {self.journal.state} without an offer")
        return offer

    @property
    def digest(self) -> str:
        """The bundle, which names its slot."""
        return self.offer.bundle.digest

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device, as last read."""
        return self._facts or self.read_facts()

    def read_facts(self) -> DeviceFacts:
        """Read the facts of the device again."""
        self._facts = self.deps.tools.read_facts()
        return self._facts

    def basis(self, base: str) -> dict[str, str]:
        """Return the basis of a choice that is made now, by the facts as last read.

        Args:
            base: Name of an adapter's base; "" for a model that runs by itself.
        """
        config = self.deps.config
        return basis_of(self.facts, config.providers) | base_basis(self.deps.state_dir, base)

    def now(self) -> float:
        """Return monotonic clock, seconds."""
        return self.deps.clock.monotonic()

    def run_in_background(self, title: str, work: Work, worker: Worker | None = None) -> Any:
        """Return the result of long work, which is begun when this is called first.

        Args:
            title: Distinguishes this work from other work of the same state.
            work: Work to run, outside of the loop's thread.
            worker: Where; None is where all long work is done.

        Raises:
            NotYetError: The work is not done.
        """
        job = self.scratch.jobs.get(title)
        if job is None:
            job = self.scratch.jobs[title] = (worker or self.deps.worker).begin(work)
        if not job.is_done:
            raise NotYetError
        del self.scratch.jobs[title]
        return job.result()

    def leave(self) -> None:
        """Forget the action's memory after a change of state or offer.

        Background work is ordered to end; the next action waits for its end. A hook may end by
        itself, within its time limit: the hook may be writing firmware.
        """
        for title, job in self.scratch.jobs.items():
            if title.startswith(_HOOKS):
                job.halt.after_this_piece()
            else:
                job.halt.set()
        if self.scratch.need_scheduler:
            self.model.link.listen(frozenset())
        self._left.append(self.scratch)
        self.scratch = Scratch()
        self.is_clear()

    def is_clear(self) -> bool:
        """Return True if no work of an earlier state continues."""
        for left in tuple(self._left):
            if all(job.is_done for job in left.jobs.values()):
                if left.download:
                    left.download.close()
                self._left.remove(left)
        return not self._left

    def own_slots(self) -> frozenset[str]:
        """Return slots of this model that no update may touch: the serving release, and the
        releases for a rollback.
        """
        journal = self.journal
        ways = (self.model.pointer.read(), journal.committed, journal.previous, journal.back)
        return frozenset(pointer.digest for pointer in ways if pointer)

    def serving_bytes(self) -> int:
        """Return the memory of the serving release; 0 if nothing serves."""
        return serving_bytes(self.deps.slots, self.model.pointer.read())

    def clear_slots(self, *, also_kept: frozenset[str] = frozenset()) -> None:
        """Remove every slot that no model of this device points to."""
        others = self.model.others.kept()
        if others is None:
            return  # A model whose journal is not read here may need any of them.
        self.deps.slots.keep_only(self.own_slots() | others | also_kept)

    def read_manifest(self) -> Manifest:
        """Return the manifest of the update's slot, verified again in every state.

        Raises:
            DeviceError: The manifest disappeared.
            BundleError: The manifest differs from the signed manifest.
        """
        if self.scratch.manifest:
            return self.scratch.manifest
        slots = self.deps.slots
        signature = slots.read_file(self.digest, SIGNATURE_FILE)
        content = slots.read_file(self.digest, MANIFEST_FILE)
        if signature is None or content is None:
            raise DeviceError(
                "manifest or signature disappeared from the slot",
                found_in=str(slots.folder(self.digest)),
            )
        _, manifest = self.deps.trust.check_manifest(signature, content)
        self.scratch.manifest = manifest
        return manifest

    def start_requests(self, target: ManifestDownload | Download) -> None:
        """Subscribe to the incomplete files, and request missing chunks soon."""
        bandwidth = parse_bandwidth(self.deps.config.limits.bandwidth)
        self.scratch.need_scheduler = NeedScheduler(self.now(), self.deps.rng, bandwidth)
        self.scratch.was_told_complete, self.scratch.came_bytes = False, 0
        self.listen_to(target)

    def listen_to(self, target: ManifestDownload | Download) -> None:
        """Subscribe to missing files, unless this device has a limit: then the device receives only
        requested chunks.
        """
        scheduler = self.scratch.need_scheduler
        is_limited = scheduler is not None and scheduler.limit is not None
        self.scratch.is_limited = is_limited
        files = () if is_limited else (one.sha256 for one in target.missing())
        self.model.link.listen(frozenset(files))

    def request_missing(self, target: ManifestDownload | Download) -> Wait | None:
        """Publish the need if due; return None if nothing is missing.

        Raises:
            OSError: The progress of the download cannot be noted.
        """
        scheduler = self.scratch.need_scheduler
        if scheduler is None:
            return None
        if target.is_complete:
            self._tell_complete(scheduler)
            return None
        if self.scratch.is_limited != (scheduler.limit is not None):
            self.listen_to(target)
        if scheduler.limit == 0:
            self._tell_complete(scheduler)
            return Wait(seconds=CLOSED_S)
        self.scratch.was_told_complete = False
        if self.now() >= scheduler.due_at:
            if isinstance(target, Download) and not scheduler.is_under_way:
                target.note()
            for need in scheduler.ask(self.digest, target.missing(), self.now()):
                self.model.link.ask(need)
        return Wait(seconds=max(0.0, scheduler.due_at - self.now()))

    def _tell_complete(self, scheduler: NeedScheduler) -> None:
        """State once that nothing is wanted any more, so that nobody waits for this device."""
        if scheduler.round and not self.scratch.was_told_complete:
            self.model.link.ask(scheduler.complete(self.digest))
        self.scratch.was_told_complete = True

    def run_hooks(self, stage: str, when: str) -> Ended | Wait | None:
        """Run the hooks of a stage once; return None if all said go."""
        scratch = self.scratch
        if (stage, when) in scratch.hooks_done:
            return None
        if self.now() < scratch.retry_at:
            return Wait(seconds=scratch.retry_at - self.now())
        verdict = self.notify_hooks(stage, when)
        if verdict.verdict == "go":
            scratch.hooks_done.add((stage, when))
            return None
        if verdict.verdict == "refuse":
            return Ended(outcome="failure", because=verdict.because)
        return self.retry_later()

    def retry_later(self) -> Wait:
        """Return the pause before a hook is asked again; each pause is longer."""
        scratch = self.scratch
        wait_s = scratch.retry_s * self.deps.rng.uniform(1.0, 1.2)
        scratch.retry_s = min(MAX_RETRY_S, 2 * scratch.retry_s)
        scratch.retry_at = self.now() + wait_s
        return Wait(seconds=wait_s)

    def notify_hooks(self, stage: str, when: str) -> HookVerdict:
        """Run the hooks of a stage, and note each hook that did not say go."""
        folders, facts = self._hook_folders(), self._hook_facts()
        verdict: HookVerdict = self.run_in_background(
            f"{_HOOKS} {stage}.{when}",
            lambda halt: self.deps.tools.run_hooks(stage, when, folders, facts, halt),
        )
        if verdict.verdict != "go":
            self.note("hook", verdict.because)
        return verdict

    def notify_hooks_once(self, stage: str, when: str) -> None:
        """Run the hooks of a stage that can decide nothing any more."""
        if (stage, when) not in self.scratch.hooks_done:
            self.notify_hooks(stage, when)
            self.scratch.hooks_done.add((stage, when))

    @property
    def is_of_agent(self) -> bool:
        """True for releases of the agent itself, by their reserved name."""
        return self.model.name == AGENT_RELEASE

    @property
    def installer(self) -> Installer | None:
        """Installer of the release's artefact; None if this device has none."""
        return self.deps.tools.agent if self.is_of_agent else self.deps.tools.firmware

    def find_artefact(self, manifest: Manifest) -> Firmware | None:
        """Return the artefact of a release for this kind of device; None if there is none."""
        if self.is_of_agent:
            return find_firmware(manifest, AGENT_RELEASE, environment_kind())
        settings = self.deps.config.firmware
        return find_firmware(manifest, settings.installer, settings.compatible)

    def run_firmware(self, step: FirmwareStep) -> HookVerdict:
        """Run a step of the installer in the background, and note each failure.

        Raises:
            DeviceError: The device has no installer.
            NotYetError: The step is not done.
        """
        firmware = self.installer
        if firmware is None and self.is_of_agent:
            raise DeviceError(
                "no launcher started this agent, so no release of the agent can be installed",
                remedy="run the agent from its package, by /usr/bin/edgepack-agent run",
            )
        if firmware is None:
            raise DeviceError(
                "the release changes the firmware, and this device has no firmware hook",
                found_in="firmware.hook",
            )
        facts = self._hook_facts() | self._firmware_facts()
        verdict: HookVerdict = self.run_in_background(
            f"{_HOOKS} {firmware.noun} {step}", lambda halt: firmware.run(step, facts, halt)
        )
        if step == "running":
            self.read_facts()
        if verdict.verdict != "go":
            self.note("hook", f"{firmware.noun} {step}: {verdict.because}")
        return verdict

    def _firmware_facts(self) -> dict[str, str]:
        """Return the facts for the firmware hook alone."""
        plan = self.journal.firmware
        if plan is None:
            return {}
        file = self.deps.slots.folder(self.digest) / plan.file
        return {
            "firmware_version": plan.version,
            "firmware_previous": plan.previous,
            "firmware_file": str(file) if file.is_file() else "",
            "firmware_previous_file": self._previous_artefact(plan.previous),
        }

    def _previous_artefact(self, version: str) -> str:
        """Return the artefact of a firmware in the slot of the committed release; "" without."""
        committed = self.journal.committed
        if committed is None or not version:
            return ""
        content = self.deps.slots.read_file(committed.digest, MANIFEST_FILE)
        try:
            found = self.find_artefact(decode_manifest(content or b""))
        except EdgepackError:
            return ""
        if found is None or found.version != version:
            return ""
        file = self.deps.slots.folder(committed.digest) / found.file
        return str(file) if file.is_file() else ""

    def _hook_folders(self) -> tuple[Path, ...]:
        """Return the device's hook folder, and the verified bundle's folder if allowed."""
        folder = self.deps.config.hooks.folder
        own = (Path(folder),) if folder else ()
        is_verified = self.journal.state not in ("OFFERED", "DOWNLOADING")
        if not is_verified or not self.deps.config.hooks.from_bundles:
            return own
        return (*own, self.bundle_hooks())

    def bundle_hooks(self) -> Path:
        """Return where the hooks that came with the bundle are."""
        return self.deps.slots.folder(self.digest) / HOOKS_FOLDER

    def _hook_facts(self) -> dict[str, str]:
        folder = self.deps.slots.folder(self.digest)
        return update_facts(
            device=self.deps.config.device,
            state_dir=self.deps.state_dir,
            bundle=self.offer.bundle,
            bundle_folder=folder if folder.is_dir() else None,
            choice=self.journal.choice,
            because=self.journal.because,
        )


def find_firmware(manifest: Manifest, installer: str, compatible: str) -> Firmware | None:
    """Return the artefact of a bundle for a kind of device; one for its board comes first."""
    fitting = [
        one
        for one in manifest.facts.firmware
        if one.installer == installer and one.compatible in ("", compatible)
    ]
    return max(fitting, key=lambda one: bool(one.compatible), default=None)
