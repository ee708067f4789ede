"""What an update needs of the world, passed in so that a test can stand in for any of it."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.agent.state.pointer import ActivePointer, write_pointer
from edgepack.agent.state.slots import Slots
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.update.journal import JournalStore
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Variant
from edgepack.wire.messages import DeviceFacts, Need, ProbeResult


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time comes from.

    Attributes:
        wall: Seconds since the epoch; may jump.
        monotonic: Seconds that only grow.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Link(Protocol):
    """Where chunks come from: the broker, or a bundle on this device."""

    def listen(self, files: frozenset[str]) -> None:
        """Wants the broadcast chunks of exactly these files (SHA-256) from now on."""

    def ask(self, need: Need) -> None:
        """Says what is missing."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What touches the hardware or starts processes.

    Attributes:
        read_facts: Reads what the device is.
        probe: Runs the golden inputs on one candidate: bundle folder, variant.
        run_hooks: Runs the hooks of a stage: stage, before or after, folders, facts.
        collect: Takes what serving processes saw since it was called last.
        write_pointer: THE switch.
    """

    read_facts: Callable[[], DeviceFacts]
    probe: Callable[[Path, Variant], ProbeResult]
    run_hooks: Callable[[str, str, Sequence[Path], Mapping[str, str]], HookVerdict]
    collect: Callable[[], Collected]
    write_pointer: Callable[[Path, ActivePointer], None] = write_pointer


class AgentDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent's update works with, put together in `cli.assembly`.

    Attributes:
        config: The agent's settings.
        keys: Public keys whose bundles are accepted.
        store: The journal.
        slots: The slots.
        tools: What touches the hardware.
        link: Where chunks come from.
        clock, rng: Time and randomness.
    """

    config: AgentConfig
    keys: tuple[PublicKey, ...]
    store: JournalStore
    slots: Slots
    tools: Tools
    link: Link
    clock: Clock = msgspec.field(default_factory=Clock)
    rng: random.Random = msgspec.field(default_factory=random.Random)

    @property
    def state_dir(self) -> Path:
        """The agent's state folder."""
        return Path(self.config.state_dir)
