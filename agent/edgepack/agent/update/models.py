"""The models of a device: an update for each, and shared state."""

import errno
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.agent.runtime.providers import why_nothing_runs
from edgepack.agent.state.disk import DiskWatch
from edgepack.agent.state.models import (
    MODEL_NAME,
    make_model_folder,
    model_folder,
    model_names,
)
from edgepack.agent.state.pointer import PointerFile
from edgepack.agent.state.release_counters import ReleaseCounters
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.transfer.chunk_status import ChunkOutcome, Content
from edgepack.agent.update.dependencies import AgentDependencies, ModelParts
from edgepack.agent.update.journal import JournalStore
from edgepack.agent.update.orders import OfferOutcome
from edgepack.agent.update.reverifier import Reverifier
from edgepack.agent.update.slot_scrubber import SlotScrubber
from edgepack.agent.update.updater import DISK_RETRY_S, Updater
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import TransferError
from edgepack.wire.coded import CodedChunk
from edgepack.wire.orders import Desired, ModelOrder, RunModel
from edgepack.wire.reports import DeviceFacts
from edgepack.wire.transfers import Need

log = logging.getLogger(__name__)

NO_REFUSALS: Mapping[str, str] = {}
PROVIDERS_LOOK_S = 5.0
"""How often the agent looks for an execution provider while none is usable."""
MAX_MODELS = 64
"""Models of one device; a report of all of them stays below what a broker lets pass."""


class Models:
    """Models of a device.

    Args:
        deps: Dependencies of their updates.
        notify: Called after every transition of any model.
    """

    def __init__(self, deps: AgentDependencies, notify: Callable[[], None]) -> None:
        self._deps = deps
        self._notify = notify
        self._wanted_files: dict[str, frozenset[str]] = {}
        self._seen: dict[str, Collected] = {}
        self._updaters: dict[str, Updater] = {}
        self._facts: DeviceFacts | None = None
        self._disk = DiskWatch(deps.state_dir)
        self._counters: ReleaseCounters | None = None
        self._is_prepared = False
        self._retry_at = self._look_at = self._providers_at = 0.0
        self._why_nothing_runs = ""
        self._bases: dict[str, tuple[str, str]] = {}
        self._try("state folder", self._load)
        self._scrubber = SlotScrubber(
            deps.worker,
            deps.slots,
            interval_s=deps.config.limits.check_interval_s,
            now=deps.clock.monotonic(),
        )
        self._reverifier = Reverifier(
            deps.worker,
            deps.slots,
            deps.tools.verify,
            deps.config.verification,
            deps.tools.temperature_c,
        )

    def __iter__(self) -> Iterator[Updater]:
        return iter(tuple(self._updaters.values()))

    def __getitem__(self, name: str) -> Updater:
        return self._updaters[name]

    def __contains__(self, name: str) -> bool:
        return name in self._updaters

    @property
    def facts(self) -> DeviceFacts:
        """Facts of the device, as last read."""
        if not self._why_nothing_runs:
            for updater in self:
                return updater.facts
        if self._facts is None:
            self._facts = self._deps.tools.read_facts()
        return self._facts

    @property
    def troubles(self) -> tuple[str, ...]:
        """Problems of the device or the state folder, a sentence each."""
        of_models = (f"{one.name}: {one.trouble}" for one in self if one.trouble)
        counters = self._counters.trouble if self._counters else ""
        care = self._scrubber.troubles
        own = filter(None, (self._why_nothing_runs, counters))
        return (*self._disk.troubles, *own, *of_models, *care)

    def start(self) -> None:
        """Continue at the states of the journals, after the agent has started.

        A disk that does not work keeps no agent from starting: `advance` tries again.
        """
        self._look_for_providers()
        self._prepare()
        for updater in self:
            updater.start()

    def _look_for_providers(self) -> None:
        """Note whether any execution provider is usable; continue with all models after a provider
        returns.
        """
        config = self._deps.config.providers
        self._providers_at = self._deps.clock.monotonic() + PROVIDERS_LOOK_S
        self._facts = self._deps.tools.read_facts()
        found = why_nothing_runs(self._facts.providers, config.allow)
        before, self._why_nothing_runs = self._why_nothing_runs, found
        if found and found != before:
            log.warning("%s", found)
        elif before and not found:
            log.info("an execution provider is usable again, after: %s", before)
            for updater in self:
                updater.compare_again()

    def apply(self, config: AgentConfig, trust: TrustPolicy) -> None:
        """Continue with reloaded settings.

        Args:
            config: Settings; only keys of `daemon.reload.AT_ONCE` may differ from the present ones.
            trust: Accepted signers.
        """
        before, self._deps.config, self._deps.trust = self._deps.config, config, trust
        self._reverifier.config = config.verification
        if config.limits.check_interval_s != before.limits.check_interval_s:
            now = self._deps.clock.monotonic()
            self._scrubber.set_interval(config.limits.check_interval_s, now)
        if config.providers != before.providers:
            self._look_for_providers()

    def count_fault(self) -> None:
        """Count a fault that ends the agent against the updates that are under way."""
        for updater in self:
            updater.count_fault()

    def _prepare(self) -> None:
        def work() -> None:
            self._deps.slots.remove_temporaries()
            self._deps.prepare()

        self._is_prepared = self._try("state folder", work)

    def _load(self) -> None:
        """Read the state folder.

        Raises:
            OSError: Something cannot be read now, or the disk is full.
        """
        deps = self._deps
        found = model_names(deps.state_dir)
        pointers = {name: PointerFile(deps.state_dir, name, write=deps.write) for name in found}
        serving = {name: pointer.read() for name, pointer in pointers.items()}
        known = {
            name: active.bundle.release
            for name, active in serving.items()
            if active and active.committed
        }
        counters = ReleaseCounters(deps.state_dir, known, write=deps.write)
        made = {name: self._make(name, pointers[name], counters) for name in found}
        self._updaters.update(made)
        self._counters = counters

    def _try(self, subject: str, work: Callable[[], None]) -> bool:
        """Run work that needs the disk; return True if the work succeeded."""
        try:
            work()
        except OSError as error:
            self._disk.failed(subject, error)
            self._retry_at = self._deps.clock.monotonic() + DISK_RETRY_S
            return False
        self._disk.works(subject)
        return True

    def _try_again(self) -> float | None:
        """Repeat the start work that the disk prevented; return seconds until the next try."""
        if self._counters is not None and self._is_prepared:
            return None
        now = self._deps.clock.monotonic()
        if now >= self._retry_at:
            if self._counters is None and self._try("state folder", self._load):
                for updater in self:
                    updater.start()
                self._notify()
            if self._counters is not None and not self._is_prepared:
                self._prepare()
        return max(0.0, self._retry_at - now)

    def _known_counters(self) -> ReleaseCounters:
        """Return the counters of the device.

        Raises:
            OSError: The state folder cannot be read yet.
        """
        if self._counters is None:
            raise OSError(errno.EIO, "the state folder cannot be read yet")
        return self._counters

    def take(
        self, desired: Desired, refusals: Mapping[str, str] = NO_REFUSALS
    ) -> dict[str, OfferOutcome]:
        """Accept the controller's desired state; a model without an order stays unchanged.

        Args:
            desired: Desired state.
            refusals: By model: the reason to reject its order.

        Returns:
            Result of each order, by model.

        Raises:
            TransferError: An order is invalid; all other orders were accepted.
            OSError: A journal cannot be written; the controller must repeat the order.
        """
        try:
            outcomes = self._take(desired, refusals)
        except OSError as error:
            self._disk.failed("orders", error)
            raise
        self._disk.works("orders")
        return outcomes

    def _take(self, desired: Desired, refusals: Mapping[str, str]) -> dict[str, OfferOutcome]:
        self._known_counters()
        outcomes: dict[str, OfferOutcome] = {}
        problems = []
        for name, order in desired.models.items():
            try:
                if not isinstance(order, RunModel) and name not in self._updaters:
                    outcomes[name] = "known"  # It is not here, so it need not go.
                else:
                    outcomes[name] = self.open(name).orders.offer(order, refusals.get(name, ""))
            except TransferError as error:
                problems.append(f"{name[:100]!a}: {error.problem}")
        if problems:
            raise TransferError("; ".join(problems))
        return outcomes

    def install(self, name: str, order: ModelOrder) -> Updater:
        """Take an order from a person on this device; see `Orders.install`."""
        updater = self.open(name)
        updater.orders.install(order)
        return updater

    def open(self, name: str) -> Updater:
        """Return the update of a model, which may be new here.

        Raises:
            TransferError: The name is invalid, or there are too many models.
            OSError: Its folder cannot be made, or the state folder cannot be read yet.
        """
        counters = self._known_counters()
        if name not in self._updaters:
            if not MODEL_NAME.fullmatch(name):
                raise TransferError(f"{name[:100]!a} is not a name of a model")
            if len(self._updaters) >= MAX_MODELS:
                self._forget_one(name)
            make_model_folder(self._deps.state_dir, name)
            pointer = PointerFile(self._deps.state_dir, name, write=self._deps.write)
            self._updaters[name] = self._make(name, pointer, counters)
        return self._updaters[name]

    def accept_chunk(self, sha256: str, index: int, content: Content) -> ChunkOutcome:
        """Take a chunk that came; several models may want the same file."""
        return _foremost({one.accept_chunk(sha256, index, content) for one in self})

    def accept_coded(self, sha256: str, coded: CodedChunk) -> ChunkOutcome:
        """Accept several chunks in a coded message, likewise."""
        return _foremost({one.accept_coded(sha256, coded) for one in self})

    def note_connected(self) -> None:
        """Note a new connection to the broker, and repeat requests."""
        for updater in self:
            updater.note_connected()

    def suspend(self) -> None:
        """Note how far downloads are, before the agent stops."""
        for updater in self:
            updater.suspend()

    def advance(self) -> float | None:
        """Continue with every update as far as possible now.

        Returns:
            Seconds after which to call again at the latest; None when only a message can help.
        """
        waits = [self._try_again()]
        now = self._deps.clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + DISK_RETRY_S
            self._disk.look()
        if self._why_nothing_runs and now >= self._providers_at:
            self._look_for_providers()
        updaters = tuple(self)
        waits += [updater.advance() for updater in updaters]
        waits.append(self._follow_bases(updaters))
        try:
            waits.append(self._scrubber.turn(updaters, self._deps.clock.monotonic()))
            waits.append(self._reverifier.turn(updaters, self._deps.clock.monotonic()))
            fault = self._scrubber.error
        except OSError as error:
            fault = error
            waits.append(DISK_RETRY_S)
        if fault is not None:
            self._disk.failed("slots", fault)
        else:
            self._disk.works("slots")
        self._clear_retired()
        return min((wait for wait in waits if wait is not None), default=None)

    def _follow_bases(self, updaters: tuple[Updater, ...]) -> float | None:
        """Compare adapters again as soon as another release or variant of their base serves.

        Returns:
            0 if adapters have to be compared; None otherwise.
        """
        names, before = {one.base for one in updaters if one.base}, self._bases
        bases = {name: self._updaters.get(name) for name in names}
        serving = {name: one.active if one is not None else None for name, one in bases.items()}
        self._bases = {
            name: (one.digest, one.choice.chosen) if one is not None else ("", "")
            for name, one in serving.items()
        }
        changed = {name for name, now in self._bases.items() if before.get(name, now) != now}
        for updater in updaters:
            if updater.base in changed:
                updater.compare_again()
        return 0.0 if changed else None

    def _clear_retired(self) -> None:
        """Remove the retired slots that sessions have released."""
        slots = self._deps.slots
        if not slots.retired:
            return
        kept = [updater.kept_slots() for updater in self]
        known = [one for one in kept if one is not None]
        if len(known) < len(kept):
            return  # A model whose journal is not read here may need any of them.
        try:
            slots.remove_retired(frozenset().union(*known))
        except OSError as error:
            log.warning("slots cannot be removed: %s", error)

    def _make(self, name: str, pointer: PointerFile, counters: ReleaseCounters) -> Updater:
        model = ModelParts(
            name=name,
            store=JournalStore(self._deps.state_dir, name, write=self._deps.write),
            pointer=pointer,
            link=_ModelLink(name, self),
            counters=counters,
            collect=lambda: self._collect(name),
            others=_Others(name, self._updaters),
        )
        return Updater(self._deps, model, self._disk, self._notify)

    def _forget_one(self, newcomer: str) -> None:
        """Make space for another model: drop a model at rest that serves no release."""
        for updater in self:
            if updater.is_at_rest and updater.active is None and not updater.is_sealed:
                del self._updaters[updater.name]
                shutil.rmtree(model_folder(self._deps.state_dir, updater.name), ignore_errors=True)
                return
        raise TransferError(
            f"{newcomer} would be one model too many: this device runs {MAX_MODELS}"
        )

    def _collect(self, name: str) -> Collected:
        """Collect the reports of a model's processes; reports of other models wait."""
        found = self._deps.tools.collect()
        mine = self._seen.pop(name, Collected())
        for updater in self:
            if updater.name != name:
                kept = self._seen.get(updater.name, Collected())
                self._seen[updater.name] = kept.joined(found)
        both = mine.joined(found)
        troubles = tuple(one for one in both.troubles if one.model in ("", name))
        return msgspec.structs.replace(both, troubles=troubles)

    def listen(self, name: str, files: frozenset[str]) -> None:
        """Subscribe to the files of all models, after a change in any model."""
        self._wanted_files[name] = files
        self._deps.link.listen(frozenset().union(*self._wanted_files.values()))

    def ask(self, need: Need) -> None:
        """Publish the missing chunks."""
        self._deps.link.ask(need)


def _foremost(outcomes: set[ChunkOutcome]) -> ChunkOutcome:
    return min(outcomes, key=get_args(ChunkOutcome).index, default="unwanted")


class _ModelLink:
    """Source of a single model's chunks."""

    def __init__(self, name: str, models: Models) -> None:
        self._name = name
        self._models = models

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to the broadcast chunks of exactly these files."""
        self._models.listen(self._name, files)

    def ask(self, need: Need) -> None:
        """Publish the missing chunks."""
        self._models.ask(need)


class _Others:
    """View of all other models of the device for a model's update."""

    def __init__(self, name: str, updaters: Mapping[str, Updater]) -> None:
        self._name = name
        self._updaters = updaters

    def _each(self) -> Iterator[Updater]:
        return (one for name, one in self._updaters.items() if name != self._name)

    def kept(self) -> frozenset[str] | None:
        """Return slots that other models need; None if a model's slots are unknown."""
        slots = [one.kept_slots() for one in self._each()]
        known = [kept for kept in slots if kept is not None]
        return frozenset().union(*known) if len(known) == len(slots) else None

    def promised_bytes(self) -> int:
        """Return disk that was promised to their updates and is not taken yet."""
        return sum(one.promised_bytes() for one in self._each())

    def memory_bytes(self) -> dict[str, int]:
        """Return the memory of each serving release, by model name."""
        return {one.name: one.memory_bytes() for one in self._each()}

    def coming_bytes(self) -> int:
        """Return the memory of the releases that updates will add."""
        return sum(one.coming_bytes() for one in self._each())

    def is_coming(self, digest: str) -> bool:
        """Return True if an update of another model to a bundle is under way."""
        return any(one.is_coming(digest) for one in self._each())

    def changes_firmware(self) -> str:
        """Return the model whose update has changed firmware or agent; "" without an update."""
        return next((one.name for one in self._each() if one.changes_firmware), "")

    def unproven_on(self, basis: str, version: str, since: float) -> dict[str, str]:
        """Return each model that is not proven on a version: why not, or "" before its probe."""
        found = {one.name: one.why_not_on(basis, version, since) for one in self._each()}
        return {name: because for name, because in found.items() if because is not None}
