"""Dependencies of updates, passed in so that a test can replace each dependency."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.agent.hooks.firmware import FirmwareStep
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.agent.runtime.verification import Verified
from edgepack.agent.state.holders import Holders
from edgepack.agent.state.pointer import PointerFile
from edgepack.agent.state.release_counters import ReleaseCounters
from edgepack.agent.state.slots import Slots
from edgepack.agent.state.state_file import Write
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.pace import Pace
from edgepack.agent.update.journal import JournalStore
from edgepack.agent.update.work import InlineWorker, Worker
from edgepack.bundle.manifest import Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.durable import write_file
from edgepack.halt import Halt
from edgepack.wire.reports import DeviceFacts, Drift, ProbeResult
from edgepack.wire.transfers import Need

DISK_PATIENCE_S = 3600.0
"""Long enough for a log that fills the disk to be rotated; an order has a deadline of its own."""


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Source of the time.

    Attributes:
        wall: Seconds since the epoch; may jump.
        monotonic: Seconds that only grow.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Link(Protocol):
    """Source of chunks: the broker, or a bundle on this device."""

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to the broadcast chunks of exactly these files (SHA-256)."""

    def ask(self, need: Need) -> None:
        """Publish the missing chunks."""


class Installer(Protocol):
    """Installer of artefacts: the firmware hook, or the slots of the agent itself.

    Attributes:
        noun: The installed thing, for messages.
        starter: Program that falls back from a start that fails, for messages.
        basis: Name of the version in the basis of a choice.
        version: Running version, as last read; "" while unknown.
    """

    noun: str
    starter: str
    basis: str
    version: str

    def run(self, step: FirmwareStep, facts: Mapping[str, str], halt: Halt) -> HookVerdict:
        """Run a step of the contract of firmware hooks."""

    def read_boot(self) -> str:
        """Return the identity of this start of the device."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools that touch the hardware or start processes.

    Attributes:
        read_facts: Reads the facts of the device.
        unsupported: Returns the variants whose precompiled context is not supported here, with
            reasons; may be halted.
        probe: Runs the golden inputs on a candidate: bundle folder, variant; may be halted.
        run_hooks: Runs the hooks of a stage: stage, before or after, folders, facts; may be halted.
        collect: Returns the reports of serving processes since the last call.
        forget_verdicts: Makes the next probe of a bundle (digest) run, regardless of earlier
            verdicts.
        pace_of: Returns the pace of a variant, by digest and name.
        holders: Returns the processes that hold a model.
        drift_of: Returns the drift of a release, by digest; None while it is not known.
        heat: Returns a sign that the device slowed down for heat since the last call; "" without.
        verify: Runs the golden samples on a serving variant again: bundle folder, variant; may be
            halted.
        temperature_c: Returns the highest temperature, degrees Celsius; None if not known.
        firmware: The firmware hook; None where the device has none.
        agent: The slots of the agent; None if no launcher started this agent.
    """

    read_facts: Callable[[], DeviceFacts]
    probe: Callable[[Path, Variant, Halt], ProbeResult]
    run_hooks: Callable[[str, str, Sequence[Path], Mapping[str, str], Halt], HookVerdict]
    collect: Callable[[], Collected]
    unsupported: Callable[[Sequence[Variant], Halt], Mapping[str, str]] = lambda *_: {}
    forget_verdicts: Callable[[str], None] = lambda _digest: None
    pace_of: Callable[[str, str], Pace] = lambda _digest, _variant: Pace()
    holders: Callable[[], Holders] = Holders
    drift_of: Callable[[str], Drift | None] = lambda _digest: None
    heat: Callable[[], str] = str
    verify: Callable[[Path, Variant, Halt], Verified] = lambda *_: Verified()
    temperature_c: Callable[[], float | None] = lambda: None
    firmware: Installer | None = None
    agent: Installer | None = None


class AgentDependencies(msgspec.Struct, kw_only=True):
    """Dependencies of all updates of a device, assembled in `cli.assembly`.

    A reload of the settings replaces `config` and `trust`; nothing else changes.

    Attributes:
        config: The agent's settings.
        trust: Accepted signers.
        slots: The slots.
        tools: Tools that touch the hardware.
        link: Where chunks come from.
        worker: Where long work is done.
        fetch_worker: Where sources are read, which may take hours; None reads none.
        write: Writes a small file durably.
        prepare: Work to do once at start, repeated while the disk does not work.
        disk_patience_s: How long an update waits for a disk that does not work, before the update
            fails.
        clock, rng: Time and randomness.
    """

    config: AgentConfig
    trust: TrustPolicy
    slots: Slots
    tools: Tools
    link: Link
    worker: Worker = msgspec.field(default_factory=InlineWorker)
    fetch_worker: Worker | None = None
    write: Write = write_file
    prepare: Callable[[], None] = lambda: None
    disk_patience_s: float = DISK_PATIENCE_S
    clock: Clock = msgspec.field(default_factory=Clock)
    rng: random.Random = msgspec.field(default_factory=random.Random)

    @property
    def state_dir(self) -> Path:
        """The agent's state folder."""
        return Path(self.config.state_dir)


class Neighbours(Protocol):
    """View of the device's other models for a model's update."""

    def kept(self) -> frozenset[str] | None:
        """Return slots that other models need; None if a model's slots are unknown."""

    def promised_bytes(self) -> int:
        """Return disk that was promised to their updates and is not taken yet."""

    def memory_bytes(self) -> dict[str, int]:
        """Return the memory of each serving release, by model name."""

    def coming_bytes(self) -> int:
        """Return the memory of the releases that updates will add."""

    def is_coming(self, digest: str) -> bool:
        """Return True if an update of another model to a bundle is under way."""

    def changes_firmware(self) -> str:
        """Return the model whose update has changed firmware or agent; "" without an update."""

    def unproven_on(self, basis: str, version: str, since: float) -> dict[str, str]:
        """Return each model that is not proven on a version: why not, or "" before its probe."""


class ModelParts(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a single model's update.

    Attributes:
        name: The model.
        store: Its journal.
        pointer: Its pointer.
        link: Where its chunks come from.
        counters: The release counters of the device.
        collect: Returns the reports of serving processes since the last call.
        others: The device's other models.
    """

    name: str
    store: JournalStore
    pointer: PointerFile
    link: Link
    counters: ReleaseCounters
    collect: Callable[[], Collected]
    others: Neighbours

    @property
    def trouble(self) -> str:
        """Problem of the file, as a sentence; "" without a problem."""
        return self.store.trouble or self.pointer.trouble

    @property
    def is_sealed(self) -> bool:
        """True if a newer edgepack wrote the model's files: the model must stay unchanged."""
        return self.store.is_sealed or self.pointer.is_sealed
